"""The devices' part of a round: stack, draw, fetch, fit, and send through the channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from federec.cohort.chunks import GPU_PADDING, PADDING, plan
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices, draw
from federec.cohort.layers import ITEMS, Params
from federec.cohort.rows import Rows
from federec.cohort.update import Update
from federec.federation.channel import Channel
from federec.federation.state import State
from federec.methods.base import LOSS, DeviceMethod
from federec.stages.base import Format
from federec.stages.randomness import Randomness, Simulated

MEMORY = 32 * 2**20
"""Bytes that one cohort's tables may take: small enough to stay near a CPU's cache."""
GPU_MEMORY = 4 * 2**30
"""The same on a large GPU, which wants large cohorts."""

_SAMPLE_BYTES = 64  # index, order, key, slot and label of a sample

Deliver = Callable[[Update, Tensor], None]
"""Takes the updates of a cohort, and the users whose devices sent them."""
Observe = Callable[[Cohort], None]
"""Sees a cohort after it has learned, while its own rows are alive."""


@dataclass
class Learned:
    """What is known of the devices' part of a round besides their updates."""

    up_bytes: int = 0
    down_bytes: int = 0
    """Over all devices."""
    figures: Params = field(default_factory=dict)
    """Losses and notes by name: their sum over devices, and how many there were."""

    def with_more(self, other: Learned) -> Learned:
        """What is known with other devices, too."""
        figures = {name: self.figures.get(name, 0) + value for name, value in other.figures.items()}
        up, down = self.up_bytes + other.up_bytes, self.down_bytes + other.down_bytes
        return Learned(up, down, self.figures | figures)


def learn(
    method: DeviceMethod,
    state: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    channel: Channel,
    deliver: Deliver,
    observe: Callable[[Cohort], None] = lambda cohort: None,
    memory: float | None = None,
    random: Randomness | None = None,
    sum_only: bool = False,
) -> Learned:
    """The devices learn: their private parameters change in place, their updates go through the channel and are
    delivered. `observe` sees each cohort after it has learned, while its own rows are alive. `random` is what stages
    draw from; without it they draw as simulated devices. `sum_only`: whoever takes the updates in only adds them up."""
    learned, figures, format_ = Learned(), dict[str, list[Tensor]](), channel.format
    added = sum_only and not channel.stages and method.adds_up(round_)
    for cohort in cohorts(method, state, devices, users, seed, round_, memory, format_, added):
        method.fit(cohort)
        update = sum_of(method, cohort, state) if added else update_of(method, cohort, state)
        source = random or Simulated.of(seed, round_, devices.numbered(cohort.users))
        sent, fetched = channel.device(update, source) if channel.stages else (update, update.counts)
        up, down = _bytes(method, cohort, update, sent, fetched, format_)
        learned.up_bytes, learned.down_bytes = learned.up_bytes + up, learned.down_bytes + down
        deliver(sent, cohort.users)
        keep_private(cohort, state)
        for name, values in {LOSS: cohort.losses, **cohort.notes}.items():
            figures.setdefault(name, []).extend(values)
        observe(cohort)
    known = {name: torch.cat(values) for name, values in figures.items() if values}
    learned.figures = {name: torch.stack([every.sum(), every.new_tensor(len(every))]) for name, every in known.items()}
    return learned


def cohorts(
    method: DeviceMethod,
    state: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    memory: float | None = None,
    format_: Format | None = None,
    added: bool = False,
) -> Iterator[Cohort]:
    """Stack the users in cohorts of like lengths, draw their samples and fetch the rows they need. `format_` is that of
    the updates they will send: whole tables take memory, too. `added`: the method sums them up (`adds_up`), so that
    none is held, and sees to padding itself."""
    if not len(users):
        return
    memory = memory or _memory(users.device)
    padding = PADDING if users.device.type == "cpu" else GPU_PADDING
    lengths = devices.lengths(users, method.negatives).cpu().numpy()
    order = np.argsort(-lengths, kind="stable")
    lengths, users = lengths[order], users[torch.from_numpy(order).to(users.device)]
    held = {**method.shared(), **method.private()}
    sends = {} if added or not method.speaks(round_) else method.sends()
    width, sent = (
        sum(param.sized(devices.n_items)[0] for param in params.values() if param.rows)
        for params in (held, {name: param for name, param in sends.items() if name not in held})
    )
    per_sample = _SAMPLE_BYTES + 8 * (width + sent)
    per_device = 8 * devices.n_items + 16 * min(method.batch, int(lengths[0])) * width
    if format_ is not None and format_.rows == "all":
        per_device += 8 * devices.n_items * (width + sent)
    for param in sends.values():
        if ITEMS in param.shape and not param.rows:  # a layer as large as the catalogue
            per_device += 8 * math.prod(param.sized(devices.n_items))
    for part in plan(lengths, per_sample, per_device, memory, 1.0 if added else padding):
        yield stack(method, state, devices, users[part], seed, round_)


def _memory(device: torch.device) -> int:
    """Bytes that one cohort's tables may take there. What is computed from them takes several times that."""
    if device.type == "cpu":
        return MEMORY
    return min(GPU_MEMORY, torch.cuda.get_device_properties(device).total_memory // 32)


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
        n_items=cohort.n_items,
        ids=ids,
        counts=counts,
        rows={name: message[name] for name, param in sends.items() if param.rows},
        layers={name: message[name] for name, param in sends.items() if not param.rows},
    )


def sum_of(method: DeviceMethod, cohort: Cohort, state: State) -> Update:
    """The sum of what the cohort's devices send, as one update."""
    layers = {name: value[None] for name, value in method.summed(cohort, state.shared).items()}
    return Update(cohort.n_items, cohort.rows.ids[:0], torch.zeros_like(cohort.users), {}, layers)


def keep_private(cohort: Cohort, state: State) -> None:
    """The devices store their private parameters for the next round."""
    for name, value in state.private.items():
        value[cohort.users] = cohort.params[name]
    for name, store in state.stores.items():
        store.put(cohort.users, cohort.rows, cohort.tables[name])


def _bytes(
    method: DeviceMethod, cohort: Cohort, update: Update, sent: Update, fetched: Tensor, format_: Format
) -> tuple[int, int]:
    """Bytes that the cohort's devices send and fetch: as the method counts them, or as the channel writes them."""
    up = method.upload_bytes(cohort, update.values())
    down = method.download_bytes(cohort)
    up = format_.update(sent) if up is None else up * format_.value_bits // 32
    if down is None:
        whole = sum(4 * layer[0].numel() for layer in update.layers.values())
        down = Format().table(fetched, update.width, update.n_items) + whole
    both = torch.stack([up.sum(), down.sum()]).tolist()
    return int(both[0]), int(both[1])
