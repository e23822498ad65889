"""One round, start to end: stack, draw, fetch, fit, send, aggregate, apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from federec import streams
from federec.cohort.chunks import GPU_PADDING, PADDING, plan
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices, draw
from federec.cohort.layers import Params
from federec.cohort.rows import Rows
from federec.federation.state import State
from federec.federation.update import Channel, Mean, Update
from federec.methods.base import DeviceMethod, Notes

Sum = Callable[[list[Params]], list[Params]]
"""Adds up tensors, name by name, over all processes of a run; those of a single process are the sum already."""

MEMORY = 32 * 2**20
"""Bytes that one cohort's tables may take: small enough to stay near a CPU's cache."""
GPU_MEMORY = 4 * 2**30
"""The same on a large GPU, which wants large cohorts."""

LOSS = "loss"
"""Name of the loss among the figures of a round."""

_SAMPLE_BYTES = 64  # index, order, key, slot and label of a sample


class Learned(NamedTuple):
    """What the devices of a round have sent."""

    mean: Mean
    channel: Channel
    figures: Params
    """Losses and notes by name: their sum over devices, and how many there were."""


@dataclass(frozen=True)
class RoundReport:
    """What the server knows after a round."""

    loss: float | None
    """Mean over devices and steps; None where the method has none."""
    up_bytes: float
    down_bytes: float
    """Per device that took part."""
    notes: Notes = field(default_factory=dict)
    """Means of the devices' own figures, and what the method says of the new shared parameters."""


def select(devices: int, participation: float, seed: int, round_: int) -> Tensor:
    """The devices of a round: those with the smallest random keys, in order of their numbers."""
    everyone = torch.arange(devices)
    count = max(1, round(participation * devices))
    if count >= devices:
        return everyone
    key = streams.bits(streams.keys(seed, round_, everyone), streams.SELECTION)
    chosen: Tensor = key.argsort(stable=True)[:count]
    return chosen.sort().values


def cohorts(
    method: DeviceMethod,
    state: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    memory: float | None = None,
) -> Iterator[Cohort]:
    """Stack the users in cohorts of like lengths, draw their samples and fetch the rows they need."""
    if not len(users):
        return
    memory = memory or _memory(users.device)
    padding = PADDING if users.device.type == "cpu" else GPU_PADDING
    lengths = devices.lengths(users, method.negatives).cpu().numpy()
    order = np.argsort(-lengths, kind="stable")
    lengths, users = lengths[order], users[torch.from_numpy(order).to(users.device)]
    held = {**method.shared(), **method.private()}
    width, sent = (
        sum(param.sized(devices.n_items)[0] for param in params.values() if param.rows)
        for params in (held, {name: param for name, param in method.sends().items() if name not in held})
    )
    per_sample = _SAMPLE_BYTES + 8 * (width + sent)
    per_device = 8 * devices.n_items + 16 * min(method.batch, int(lengths[0])) * width
    for part in plan(lengths, per_sample, per_device, memory, padding):
        yield stack(method, state, devices, users[part], seed, round_)


def _memory(place: torch.device) -> int:
    """Bytes that one cohort's tables may take there. What is computed from them takes some times that."""
    if place.type == "cpu":
        return MEMORY
    return min(GPU_MEMORY, torch.cuda.get_device_properties(place).total_memory // 32)


def stack(method: DeviceMethod, state: State, devices: Devices, users: Tensor, seed: int, round_: int) -> Cohort:
    """One cohort; `users` sorted by falling number of samples."""
    samples = draw(devices, users, seed, round_, method.negatives)
    rows = Rows.of(samples.items, samples.counts, devices.n_items, method.cover(users, samples, devices.n_items))
    tables, layers = method.fetch(state.shared, users, rows)
    for name, store in state.stores.items():
        tables[name] = store.take(users, rows.owner, rows.ids)
    params = {name: value[users] for name, value in state.private.items()} | layers
    return Cohort(users, samples, rows, tables, params, round_, devices.history(users))


def update_of(method: DeviceMethod, cohort: Cohort, state: State) -> Update:
    """What the cohort's devices send: what the method declares, and nothing private."""
    message = method.message(cohort, state.shared)
    sends = {name: param for name, param in method.sends().items() if name in message}
    ids, counts = cohort.rows.ids, cohort.rows.counts(len(cohort))
    if not any(param.rows for param in sends.values()):  # which items a device touched is its own business
        ids, counts = ids[:0], torch.zeros_like(counts)
    return Update(
        ids=ids,
        counts=counts,
        rows={name: message[name] for name, param in sends.items() if param.rows},
        layers={name: message[name] for name, param in sends.items() if not param.rows},
    )


def received(method: DeviceMethod, update: Update, users: Tensor, state: State) -> Update:
    """A cohort's update as the server adds it up: as it is, or what the method's server makes of it."""
    made = method.receive(users, update.ids, update.owner, update.rows | update.layers, state.shared)
    if made is None:
        return update
    summed = {name: total[None] for name, total in made.items()}
    return Update(update.ids[:0], torch.zeros_like(update.counts), {}, summed)


def keep_private(cohort: Cohort, state: State) -> None:
    """The devices store their private parameters for the next round."""
    for name, value in state.private.items():
        value[cohort.users] = cohort.params[name]
    for name, store in state.stores.items():
        store.put(cohort.users, cohort.rows, cohort.tables[name])


def play(
    method: DeviceMethod,
    state: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    observe: Callable[[Cohort], None] = lambda cohort: None,
    memory: float | None = None,
    sum_: Sum = list,
) -> RoundReport:
    """Play one round in place. `observe` sees each cohort after it has learned, while its own rows are alive."""
    learned = learn(method, state, devices, users, seed, round_, observe, memory)
    return settle(method, state, *learned, sum_)


def learn(
    method: DeviceMethod,
    state: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    observe: Callable[[Cohort], None] = lambda cohort: None,
    memory: float | None = None,
    send: Callable[[Update], Update] = lambda update: update,
) -> Learned:
    """The devices' part of a round: their private parameters change in place, what they send is added up. `send` is
    what happens to an update before it leaves."""
    channel, mean = Channel(devices.n_items), Mean(devices.n_items)
    figures: dict[str, list[Tensor]] = {}
    for cohort in cohorts(method, state, devices, users, seed, round_, memory):
        method.fit(cohort)
        update = send(update_of(method, cohort, state))
        up = method.upload_bytes(cohort, update.rows | update.layers)
        update = channel.send(update, up, method.download_bytes(cohort))
        mean.add(received(method, update, cohort.users, state))
        keep_private(cohort, state)
        for name, values in {LOSS: cohort.losses, **cohort.notes}.items():
            figures.setdefault(name, []).extend(values)
        observe(cohort)
    known = {name: torch.cat(values) for name, values in figures.items() if values}
    pairs = {name: torch.stack([every.sum(), every.new_tensor(len(every))]) for name, every in known.items()}
    return Learned(mean, channel, pairs)


def settle(
    method: DeviceMethod, state: State, mean: Mean, channel: Channel, figures: Params, sum_: Sum = list
) -> RoundReport:
    """The server's part of a round: new shared parameters from what the devices of all processes sent. `figures`: sum
    and number of the devices' losses and notes, by name."""
    counts = torch.tensor([channel.up_bytes, channel.down_bytes, mean.devices], dtype=torch.float64)
    mean.total, figures, counted = sum_([mean.total, figures, {"counts": counts}])
    up, down, devices = counted["counts"].tolist()
    mean.devices = int(devices)
    heard = max(devices, 1)  # nobody may have been asked
    state.shared = method.server_step(state.shared, mean.values(method.sums), state.server)
    means = {name: float(total / number) for name, (total, number) in figures.items()}
    loss = means.pop(LOSS, None)
    return RoundReport(loss, up / heard, down / heard, {**means, **method.inspect(state.shared)})
