"""What a run promises: the epsilon that its canaries are held against."""

from __future__ import annotations

import math
from typing import NamedTuple

from federec.auditing.epsilon import DELTA, gaussian_epsilon
from federec.auditing.replay import Federation
from federec.network.policy import epsilon, rho
from federec.runtimes.run import Run


class Promised(NamedTuple):
    """Differential privacy of one user over all rounds of a run."""

    epsilon: float | None
    """None where nothing is promised."""
    delta: float
    source: str
    """Who says so."""


def promised(run: Run, federation: Federation) -> Promised:
    """What the result says; where it says nothing, what follows from Gaussian noise on clipped updates: by the count of
    a device's budget for single messages, by that of the Gaussian mechanism for sums over n devices

        mu = norm sqrt(rounds) / (scale sqrt(n))
    """
    said = run.result.get("privacy") or {}
    if said.get("epsilon") is not None:
        return Promised(float(said["epsilon"]), float(said["delta"]), str(said.get("accountant") or "the run"))
    channel, rounds = federation.link.channel, int(run.result["rounds"])
    cost, promise = rho(channel), channel.promise
    if cost is None or promise.clip is None:
        return Promised(None, DELTA, "")
    if not promise.hidden:
        return Promised(epsilon(cost * rounds), DELTA, "the device's budget")
    mu = promise.clip * math.sqrt(rounds) / (promise.scale * math.sqrt(len(federation.chosen(1))))
    return Promised(gaussian_epsilon(mu), DELTA, "the Gaussian mechanism")
