"""What a privacy setting costs, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from federec.errors import UserError
from federec.methods.base import Method
from federec.privacy.cost import DELTA, accountants, epsilon
from federec.runs.budget import budget_of, charged_rounds, sampling_of
from federec.runs.config import RunConfig
from federec.stages.base import shapes

DROWNED = 1.0
"""Length of the noise, in lengths of the longest sum that all devices could send, beyond which nothing is learned."""
CLEAR = 0.1
"""The same, up to which the noise hardly matters."""


def plan(config: RunConfig, method: Method, users: int, n_items: int) -> dict[str, Any]:
    """Figures of a configuration that names all its noise, for so many users who take part with probability
    `participation` and update all values of the shared parameters."""
    budget = budget_of(config, method, n_items)
    if budget is None:
        stages = "--stage clip:norm=1 --stage central-noise:multiplier=1"
        raise UserError(f"no noise that bounds anything; give --epsilon, or stages such as {stages}")
    method, promise = budget.method, config.link(budget.method).channel.promise
    cost, delta = budget.account.cost, config.delta or DELTA
    asked = max(1, round((config.participation or 1.0) * users))
    rounds = min(charged_rounds(config, method), int(min(budget.account.most, 1 << 20)))
    values = sum(math.prod(shape) for shape in shapes(method.sends(), n_items).values())
    local = promise.noise in ("gaussian", "laplace")
    deviation = promise.scale / (promise.clip or 1.0) if local else promise.multiplier
    length = deviation * math.sqrt(values * (asked if local else 1)) / asked
    return {
        "users": users,
        "devices_a_round": asked,
        "rounds": rounds,
        "values": values,
        "noise": promise.noise,
        "noise_multiplier": deviation,
        "clip": promise.clip,
        "follows": promise.follows,
        "sampling": sampling_of(config, promise.noise),
        "delta": 0.0 if accountants(cost)[0] == "sum" else delta,
        "epsilon": {by: epsilon(cost, rounds, delta, by) for by in accountants(cost)},
        "epsilon_of_one_round": epsilon(cost, 1, delta),
        "noise_per_value_of_the_mean": length / math.sqrt(values),
        "noise_to_longest_sum": length,
        "users_for_a_tenth": math.ceil(users * (length / CLEAR) ** (2 if local else 1)),
    }


def remarks(found: dict[str, Any]) -> Iterator[str]:
    """What a plan means, in sentences."""
    by, value = next(iter(found["epsilon"].items()))
    yield (
        f"privacy: epsilon {value:.3g} at delta {found['delta']:g} ({by}) for each user after {found['rounds']:,} "
        f"round(s); {found['noise']} noise, multiplier {found['noise_multiplier']:.4g}"
    )
    length = found["noise_to_longest_sum"]
    if length > CLEAR:
        drowned = "the model will know next to nothing" if length > DROWNED else "expect a weaker model"
        yield (
            f"privacy: the noise of a round is {length:.2g} times as long as the longest sum that "
            f"{found['devices_a_round']:,} devices could send, so {drowned}; fewer rounds, fewer values or about "
            f"{found['users_for_a_tenth']:,} users bring that down to a tenth"
        )
