"""Rounds and scores by the GPU's kernels: same samples, same arithmetic as `federation.round.play`."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cache, cached_property
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from federec import streams
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.store import PAGE, RowStore
from federec.federation.device import GPU_MEMORY, Learned
from federec.federation.fused import start_of
from federec.federation.fused_base import RoundInputs, fetched
from federec.federation.scoring import score_global
from federec.federation.server import RoundReport, Sum, server_random, settle
from federec.federation.state import State
from federec.kernels import gpu_additive, gpu_linear
from federec.kernels.gpu import Drawn, Histories, Outcome, draw, settle_ties, shuffle_keys, stream_keys
from federec.kernels.gpu_pages import Store
from federec.methods.base import LOSS, DeviceMethod
from federec.methods.forms import AdditiveScore, LinearScore
from federec.stages.base import Format
from federec.stages.noise import quantiles

_BLOCK = 1024  # samples that a program draws
_VALUES = 8192  # of item rows that a program looks at together
_MOST = GPU_MEMORY // 64  # samples drawn at once
_RESIDENT, _REGISTERS = 2, 128  # programs on a multiprocessor that hold rows in registers; how many a thread has then
_ALIGNED = 4  # numbers from one address that a kernel takes for aligned to the next
_KEY_BITS = 31
"""Of the keys that samples are sorted by. Sorting takes time for every bit, so the lowest bits of the random numbers
are left out, and samples that are then equal are settled afterwards."""


class Schedule:
    """In which order devices play, the longest first, and where the samples of each lie. It depends on who plays, not
    on the round: it is made again only for other users."""

    def __init__(self, devices: Devices, users: Tensor, negatives: int) -> None:
        lengths, self.places = devices.lengths(users, negatives).sort(descending=True, stable=True)
        self.users, self.numbers = users[self.places], devices.numbered(users[self.places])
        self.known = lengths.tolist()
        self.count = sum(self.known)
        """Of samples; and here those of each device, for whom may not wait for the GPU."""
        self.lengths, self.first = lengths.int(), (lengths.cumsum(0) - lengths).int()
        self.halves = users.chunk(2)
        """Of the users, for when they are too many."""
        self.used = self.read_aside = False
        """Whether they have played before, and whether a second stream has read what is here."""
        self.ahead: Ahead | None = None
        self._longer: dict[int, int] = {}

    @cached_property
    def owner(self) -> Tensor:
        """The device of each sample."""
        number = torch.arange(len(self.users), dtype=torch.int32, device=self.users.device)
        return torch.repeat_interleave(number, self.lengths, output_size=self.count)

    def longer(self, least: int) -> int:
        """Samples of the devices that have more than so many. They come first."""
        if least not in self._longer:
            self._longer[least] = sum(takewhile(lambda length: length > least, self.known))
        return self._longer[least]


_SCHEDULES: MutableMapping[Tensor, tuple[Devices, int, Schedule]] = WeakTensorKeyDictionary()


def schedule_of(devices: Devices, users: Tensor, negatives: int) -> Schedule:
    """The schedule of these users, which is kept as long as the tensor is."""
    known = _SCHEDULES.get(users)
    if known is None or known[0] is not devices or known[1] != negatives:
        known = devices, negatives, Schedule(devices, users, negatives)
        _SCHEDULES[users] = known
    return known[2]


class Draws:
    """The samples of many devices one after the other."""

    def __init__(self, devices: Devices, schedule: Schedule, seed: int, round_: int, negatives: int) -> None:
        self.schedule, count = schedule, schedule.count
        self.keys = torch.empty_like(schedule.numbers)
        base = streams.base(seed, round_)
        stream_keys[(-(-len(self.keys) // _BLOCK),)](schedule.numbers, self.keys, len(self.keys), base, BLOCK=_BLOCK)
        self.samples = torch.empty(count, dtype=torch.int32, device=self.keys.device)
        """2 * item, plus 1 for a positive."""
        draw[(-(-count // _BLOCK),)](
            schedule.users,
            self.keys,
            schedule.first,
            schedule.owner,
            Histories(devices.ptr, devices.train, devices.closed_ptr, devices.gaps),
            self.samples,
            count,
            devices.n_items,
            negatives,
            devices.n_items.bit_length(),
            BLOCK=_BLOCK,
        )

    def orders(self, epochs: int, count: int) -> Tensor:
        """Of the first `count` samples, whole devices: where they are after shuffling, [epochs, count]."""
        out = torch.empty(epochs, count, dtype=torch.int32, device=self.keys.device)
        keys = torch.empty(count, dtype=torch.int32, device=self.keys.device)
        inputs, blocks = (self.keys, self.schedule.first, self.schedule.owner), (-(-count // _BLOCK),)
        lost = 31 - _KEY_BITS + len(self.keys).bit_length()
        for epoch in range(epochs if count else 0):
            base = streams.SHUFFLE + (epoch << 32)
            shuffle_keys[blocks](*inputs, keys, count, base, lost, BLOCK=_BLOCK)
            known, order = keys.sort(stable=True)
            settle_ties[blocks](*inputs, known, order, out[epoch], count, base, BLOCK=_BLOCK)
        return out


class Ahead(NamedTuple):
    """Samples of the next round, drawn while the server and the rankings leave the GPU idle."""

    seed: int
    round: int
    drawn: Draws
    orders: Tensor
    ready: torch.cuda.Event


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """Where samples are drawn ahead."""
    return torch.cuda.Stream(device)


class GpuRound:
    """One round, a few users at a time. A subclass launches the kernel of one form."""

    resident = 3
    """Programs on a multiprocessor."""
    layers: tuple[str, ...] = ()
    """Shared layers that devices change."""
    rank = None

    def __init__(self, table: str | None, start: Tensor, inputs: RoundInputs) -> None:
        """`table`: the shared item rows that devices change, if any; `start`: rows [M, d] that they begin with."""
        self.method, self.state, self.devices, self.seed, self.round, self.link = inputs
        self.device, self.table = start.device, table
        self.total = torch.zeros_like(start)
        self.shuffles = self.method.epochs, self.method.batch
        """The orders that a device needs of its samples, and the most samples with which it needs none."""
        self.figures: list[Tensor] = []
        """[5 + layers, C] of those who have played: sum and number of losses, rows held, rows changed, values changed;
        then values changed of each layer."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        """These users learn; returns the scores of the items `ask` [C, K], each with the user's own rows, by its own
        weights or those of `judges` [C, width + 1]."""
        if not len(users):
            return torch.empty(ask.shape, device=self.device)
        schedule = schedule_of(self.devices, users, self.method.negatives)
        if schedule.count > _MOST and len(users) > 1:
            weights = (None, None) if judges is None else judges.chunk(2)
            return torch.cat([self.play(*half) for half in zip(schedule.halves, ask.chunk(2), weights, strict=True)])
        self.reserve(schedule)
        with torch.cuda.device_of(users):  # of several GPUs a kernel runs on the current one
            return self.learn(schedule, ask, judges)

    def reserve(self, schedule: Schedule) -> None:
        """Make space for what the users will keep."""

    def learn(self, schedule: Schedule, ask: Tensor, judges: Tensor | None) -> Tensor:
        """The same of users who are scheduled. From here to the report nothing waits for the GPU."""
        drawn, orders = self.samples(schedule)
        scores = torch.empty(ask.shape, device=self.device)
        figures = torch.empty(5 + len(self.layers), len(ask), device=self.device)
        n_items, dim = self.total.shape
        programs = min(len(ask), self.resident * _processors(self.device), GPU_MEMORY // (4 * n_items * (dim + 3)))
        asked = gpu_linear.Asked(ask.contiguous(), scores if judges is None else judges.contiguous(), scores)
        samples = Drawn(
            schedule.users,
            schedule.places,
            drawn.keys,
            schedule.first,
            schedule.lengths,
            drawn.samples,
            orders,
        )
        outcome = Outcome(self.total, figures)
        self.launch(max(1, programs), samples, schedule.known[0], asked, judges is not None, outcome)
        self.figures.append(figures)
        if schedule.used and self.device.type == "cuda":  # the same devices for the second time: probably once more
            self.draw_ahead(schedule)
        schedule.used = True
        return scores

    def samples(self, schedule: Schedule) -> tuple[Draws, Tensor]:
        """The samples of this round and their orders."""
        ahead, schedule.ahead = schedule.ahead, None
        if ahead is None or (ahead.seed, ahead.round) != (self.seed, self.round):
            return self.draw(schedule, self.round)
        here = torch.cuda.current_stream(self.device)
        here.wait_event(ahead.ready)
        for value in (ahead.drawn.keys, ahead.drawn.samples, ahead.orders):
            value.record_stream(here)  # its memory is free when the round is over
        return ahead.drawn, ahead.orders

    def draw(self, schedule: Schedule, round_: int) -> tuple[Draws, Tensor]:
        """The samples of a round and their orders."""
        drawn = Draws(self.devices, schedule, self.seed, round_, self.method.negatives)
        epochs, least = self.shuffles
        return drawn, drawn.orders(epochs, schedule.longer(least))

    def draw_ahead(self, schedule: Schedule) -> None:
        """Draw the samples of the next round, after what the GPU is busy with. They do not depend on what this round
        learns."""
        aside, here = _aside(self.device), torch.cuda.current_stream(self.device)
        aside.wait_stream(here)
        if not schedule.read_aside:
            devices = self.devices.ptr, self.devices.train, self.devices.closed_ptr, self.devices.gaps
            for value in (schedule.users, schedule.numbers, schedule.first, schedule.owner, *devices):
                value.record_stream(aside)  # its memory is not given away while it is read there
            schedule.read_aside = True
        with torch.cuda.stream(aside):
            drawn, orders = self.draw(schedule, self.round + 1)
            schedule.ahead = Ahead(self.seed, self.round + 1, drawn, orders, aside.record_event())

    def launch(
        self, programs: int, drawn: Drawn, longest: int, asked: gpu_linear.Asked, judged: bool, outcome: Outcome
    ) -> None:
        """Run the kernel on devices with at most `longest` samples; fills in the scores of what is `asked`, by the
        weights of others if it is `judged`, and the outcome."""
        raise NotImplementedError(f"{type(self).__name__}.launch")

    def floats(self, *shape: int) -> Tensor:
        """For a kernel's values."""
        return torch.empty(shape, device=self.device)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """For a kernel's bookkeeping."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def change(self) -> Params:
        """The devices' changes of shared item rows and layers, summed."""
        return {self.table: self.total} if self.table else {}

    def figures_of_all(self) -> Tensor:
        """The figures of all who have played."""
        if len(self.figures) == 1:
            return self.figures[0]
        return torch.cat([self.floats(5 + len(self.layers), 0), *self.figures], 1)

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server settles the round."""
        total, format_ = self.change(), self.link.channel.format
        # On the CPU: these are many operations on few numbers, and each takes a GPU longer to begin.
        figures = self.figures_of_all().cpu()
        losses, (times, held, rows, values, *layers) = figures[0].double(), figures[1:].long()
        n_items, dim = self.total.shape
        up, down = format_.changes(rows, values, dim, n_items), fetched(held, dim, n_items, format_)
        for filled, name in zip(layers, self.layers, strict=True):
            size = total[name].numel()
            up, down = up + format_.layer(filled, size), down + Format().layer(torch.full_like(filled, size), size)
        learned = Learned(int(up.sum()), int(down.sum()), {LOSS: torch.stack([losses.sum(), times.sum()])})
        aggregator = self.link.aggregator(n_items)
        aggregator.merge(total, len(held))
        random = server_random(self.seed, self.round, self.devices)
        return settle(self.method, self.state, aggregator, self.link, learned, random, sum_)


class LinearRound(GpuRound):
    """A round of a method with a linear score."""

    def __init__(self, form: LinearScore, inputs: RoundInputs) -> None:
        self.form, self.start = form, start_of(inputs.state, form)
        super().__init__(None if form.own else form.table, self.start, inputs)
        self.store = inputs.state.stores[form.table] if form.own else None
        if form.passes:
            self.shuffles = 1, 0
        self.sharp, self.shape = form.rho > 0 or form.item_rho > 0, _shape(self.start.shape[1], self.method.batch)
        self.once = self.method.batch <= self.shape["TILE"] and not (form.passes or self.sharp or form.own)
        """Whether a program holds the rows of a batch in registers (`kernels.gpu_linear_once`)."""
        if self.once:
            self.resident = _RESIDENT

    def reserve(self, schedule: Schedule) -> None:
        if self.store is not None:
            reserve(self.store, schedule)

    def launch(
        self, programs: int, drawn: Drawn, longest: int, asked: gpu_linear.Asked, judged: bool, outcome: Outcome
    ) -> None:
        form, method = self.form, self.method
        n_items, dim = self.start.shape
        store = nothing_kept(self.device) if self.store is None else pages(self.store)
        tables = self.floats(programs, n_items, dim)
        marks = -(-programs * n_items // _ALIGNED) * _ALIGNED
        counters = self.zeros(_ALIGNED + (1 + self.once) * marks)  # all at once: each takes the host as long
        buffers = gpu_linear.Buffers(
            tables=tables,
            marks=counters[_ALIGNED:],
            lasts=counters[_ALIGNED + self.once * marks :],
            errors=self.floats(programs, method.batch),
            pulls=self.zeros(programs, n_items, dtype=torch.float32) if self.sharp else tables,
            queue=counters,
        )
        plan = gpu_linear.Plan(
            batch=method.batch,
            epochs=method.epochs,
            bias=float(form.bias is not None),
            rate=form.rate,
            item_rate=form.item_rate,
            passes=form.passes,
            disjoint=int(form.disjoint),
            rho=form.rho,
            item_rho=form.item_rho,
            laplace=form.laplace,
        )
        gpu_linear.linear_round[(programs,)](
            gpu_linear.Tables(self.start, *private(self.state, form)),
            store,
            drawn,
            asked,
            outcome,
            laplace_quantiles(self.device),
            buffers,
            plan,
            devices=len(drawn.users),
            n_items=n_items,
            most_pages=store.pages.shape[1],
            shuffled=drawn.order.shape[1],
            asked=asked.items.shape[1],
            ALTERNATE=form.alternate,
            REBUILT=form.passes > 0,
            SHARP=self.sharp,
            NOISY=form.laplace > 0,
            OWN=form.own,
            JUDGED=judged,
            ONCE=self.once,
            PAGE=PAGE,
            maxnreg=_REGISTERS if self.once else None,
            **self.shape,
        )


class AdditiveRound(GpuRound):
    """A round of a method with an additive score. Devices rank when it is over: `play` scores nothing."""

    def __init__(self, form: AdditiveScore, inputs: RoundInputs) -> None:
        assert form.common is not None and form.own is not None
        super().__init__(form.common, inputs.state.shared[form.common], inputs)
        self.form, self.store = form, inputs.state.stores[form.own]

    def reserve(self, schedule: Schedule) -> None:
        reserve(self.store, schedule)

    def launch(
        self, programs: int, drawn: Drawn, longest: int, asked: gpu_linear.Asked, judged: bool, outcome: Outcome
    ) -> None:
        form, method, store = self.form, self.method, self.store
        n_items, dim = self.total.shape
        common = self.state.shared[str(self.table)]
        rate, item_rate, own_rate = form.rates
        away, small = form.regularisers(self.round)
        buffers = gpu_additive.Buffers(
            tables=torch.empty(programs, n_items, dim, device=self.device),
            lies=self.zeros(programs, n_items),
            marks=self.zeros(programs, n_items),
            copies=self.zeros(programs, n_items),
            leads=self.zeros(programs, method.batch),
            queue=self.zeros(1),
        )
        steps = gpu_additive.Steps(
            batch=method.batch,
            epochs=method.epochs,
            rate=rate,
            item_rate=item_rate,
            own_rate=own_rate,
            pace=form.round_decay ** (self.round - 1),
            step_decay=form.step_decay,
            weight_decay=form.weight_decay,
            tolerance=form.tolerance,
            away=away,
            small=small,
        )
        gpu_additive.additive_round[(programs,)](
            gpu_additive.Tables(common, store.start, *private(self.state, form)),
            pages(store),
            drawn,
            outcome,
            buffers,
            steps,
            devices=len(drawn.users),
            n_items=n_items,
            most_pages=store.pages.shape[1],
            shuffled=drawn.order.shape[1],
            L1=not form.squared,
            PAGE=PAGE,
            **_shape(dim, method.batch),
        )


def linear_scores(
    form: LinearScore, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    if form.own:  # a store of private rows is faster asked as a whole
        return score_global(method, state, users, items)
    tables = gpu_linear.Tables(state.shared[form.table], *private(state, form))
    out = torch.empty(items.shape, device=users.device)
    asked = items.shape[1]
    shape = _shape(tables.rows.shape[1], asked)
    with torch.cuda.device_of(users):
        gpu_linear.linear_scores[(len(users), -(-asked // shape["TILE"]))](
            tables, users, items.contiguous(), out, asked=asked, **shape
        )
    return out


def additive_scores(
    form: AdditiveScore, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows and each device's own."""
    assert form.common is not None and form.own is not None
    common, store = state.shared[form.common], state.stores[form.own]
    out, asked, (n_items, dim) = torch.empty(items.shape, device=users.device), items.shape[1], common.shape
    programs = min(len(users), 8 * _processors(users.device))
    lies = torch.empty(programs, n_items, dtype=torch.int32, device=users.device)
    with torch.cuda.device_of(users):
        gpu_additive.additive_scores[(programs,)](
            gpu_additive.Tables(common, store.start, *private(state, form)),
            pages(store),
            users,
            items.contiguous(),
            out,
            lies,
            devices=len(users),
            n_items=n_items,
            most_pages=store.pages.shape[1],
            asked=asked,
            PAGE=PAGE,
            **_shape(dim, asked),
        )
    return out


def pages(store: RowStore) -> Store:
    """A store, for a kernel to read and write."""
    return Store(store.held, store.pages, store.ids, store.rows)


@cache
def nothing_kept(device: torch.device) -> Store:
    """For a kernel whose devices keep no rows."""
    none = torch.zeros(0, 0, dtype=torch.int32, device=device)
    return Store(none.long(), none, none, none.float())


def reserve(store: RowStore, schedule: Schedule) -> None:
    """Make space in a store for all rows that the scheduled users will touch."""
    store.reserve(schedule.users, (store.held[schedule.users] + schedule.lengths).clamp(max=len(store.start)))


@cache
def laplace_quantiles(device: torch.device) -> Tensor:
    """Of the Laplace distribution, on that device."""
    return quantiles().to(device)


def private(state: State, form: LinearScore | AdditiveScore) -> tuple[Tensor, Tensor]:
    """Views of all devices' weights [N, dim] and biases [N]; without a bias, zeros that stay so."""
    weights = state.private[form.weight]
    biases = torch.zeros(len(weights), device=weights.device) if form.bias is None else state.private[form.bias]
    return weights.view(len(weights), -1), biases.view(-1)


def _shape(dim: int, rows: int) -> dict[str, int]:
    """How a program looks at `rows` rows: a tile at a time, a thread for each."""
    width = padded(dim)
    tile = max(16, min(_VALUES // width, padded(rows)))
    return {"DIM": dim, "WIDTH": width, "TILE": tile, "num_warps": max(1, min(8, tile // 32))}


def padded(number: int) -> int:
    """The least power of two that is not below it, and not below 16."""
    return max(16, 1 << (number - 1).bit_length())


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of the GPU; one in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
