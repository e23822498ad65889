"""Both engines play the same rounds, where a method has a form for kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from federec.checks.comparing import close, must
from federec.checks.rounds import contents
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.federation.engine import fused_round, fused_scores
from federec.federation.round import play
from federec.federation.scoring import score_global, score_own
from federec.federation.state import State
from federec.methods.base import DeviceMethod


def engines_agree(
    method: DeviceMethod,
    devices: Devices,
    users: Tensor | None = None,
    rounds: range = range(1, 2),
    tolerance: float = 1e-4,
    own: bool | None = None,
) -> str:
    """Torch and the kernel end these rounds with the same parameters, losses, bytes and scores; `own`: the scores of a
    device's own rows in the round, too. By default those of a method that ranks with them."""
    if method.fused_form(devices.n_items) is None:
        return "it has no fused form"
    users = torch.arange(len(devices)) if users is None else users
    items, asked = torch.arange(devices.n_items), method.view == "own" if own is None else own
    stacked, fused = (State.start(method, devices.n_items, len(devices), 1) for _ in range(2))
    for round_ in rounds:
        expected = torch.zeros(len(devices), devices.n_items)

        def observe(cohort: Cohort, expected: Tensor = expected) -> None:
            if asked:
                expected[cohort.users] = score_own(method, cohort, stacked, items.expand(len(cohort), -1))

        slow = play(method, stacked, devices, users, 7, round_, observe)
        playing = fused_round(method, fused, devices, 7, round_)
        ask = items if asked else items[:0]
        scores = torch.cat([playing.play(part, ask.expand(len(part), -1)) for part in users.split(4)])
        quick = playing.finish()
        losses = torch.tensor([[float("nan") if report.loss is None else report.loss] for report in (quick, slow)])
        close(losses[0], losses[1], f"loss of round {round_}", tolerance)
    sent = [(report.up_bytes, report.down_bytes) for report in (quick, slow)]
    must(sent[0] == sent[1], f"the kernel counts {sent[0]} bytes up and down, torch {sent[1]}")
    for name, store in stacked.stores.items():
        must(torch.equal(fused.stores[name].held, store.held), f"the kernel touches other rows of {name}")
    after = contents(fused)
    differences = [close(after[name], value, name, tolerance) for name, value in contents(stacked).items()]
    for name, figure in slow.notes.items():
        if isinstance(figure, float) and ":" not in name:  # those of devices; the server's come from its parameters
            close(torch.tensor(quick.notes[name]), torch.tensor(figure), name, tolerance)
    if asked:
        close(scores, expected[users], "scores with a device's own rows", tolerance)
    everything = items.expand(len(users), -1)
    quick_scores = fused_scores(method, fused, devices, users, everything)
    close(quick_scores, score_global(method, stacked, users, everything, devices), "scores", tolerance)
    return f"{len(rounds)} rounds: differences up to {max(differences):.1g}"
