"""What holds for one round of every method that is trained on devices. Each function returns what was seen, or raises
`Broken`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from federec.checks.comparing import Broken, close, must, perturbed
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.federation.channel import Link
from federec.federation.device import cohorts, update_of
from federec.federation.round import play
from federec.federation.server import RoundReport
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.stages.randomness import Simulated

SEED = 3
TOLERANCE = 1e-4
FIELDS = ("n_items", "ids", "counts", "rows", "layers")
"""All that an update is."""


class Seen(NamedTuple):
    """What one device drew, held and sent."""

    drawn: Params
    learned: Params


class Round(NamedTuple):
    state: State
    """After it."""
    seen: dict[int, Seen]
    """By device."""
    sizes: list[int]
    """Of the cohorts."""
    report: RoundReport


def started(method: DeviceMethod, devices: Devices) -> State:
    """The state after one round, so that devices differ from one another."""
    state = State.start(method, devices.n_items, len(devices), SEED)
    play(method, state, devices, torch.arange(len(devices)), SEED, 1)
    return state


def cohort_of_many(method: DeviceMethod, devices: Devices, start: State, tolerance: float = TOLERANCE) -> str:
    """A cohort of N devices learns and sends what N cohorts of one do, and the server makes the same of it."""
    everyone = torch.arange(len(devices))
    state, together, sizes, _ = one_round(method, start, devices, everyone)
    must(max(sizes) > 2, "there was no cohort of more than two devices")
    apart: dict[int, Seen] = {}
    after: dict[int, Params] = {}
    for user in everyone.tolist():
        single = one_round(method, start, devices, torch.tensor([user]))
        apart |= single.seen
        after[user] = contents(single.state)
    differences = [same(together, apart, tolerance)]
    for name, value in contents(state).items():
        if name.startswith(("private ", "store ")):
            expected = torch.stack([one[name][user] for user, one in after.items()])
            differences.append(close(value, expected, name, tolerance))
    memory = {name: value.clone() for name, value in start.server.items()}
    mean = plain_mean(method, apart, devices, start.shared)
    for name, value in method.server_step(start.shared, mean, memory).items():
        differences.append(close(state.shared[name], value, f"shared {name}", tolerance))
    for name, value in memory.items():
        differences.append(close(state.server[name], value, f"the server's {name}", tolerance))
    return f"{len(everyone)} devices together and apart: differences up to {max(differences):.1g}"


def chunk_sizes(method: DeviceMethod, devices: Devices, start: State, tolerance: float = TOLERANCE) -> str:
    """Neither the size of cohorts nor the number of threads changes a round."""
    users = torch.arange(len(devices))
    large = one_round(method, start, devices, users)
    small = one_round(method, start, devices, users, memory=1.0)
    must(small.sizes == [1] * len(users) and len(large.sizes) < len(users), "all cohorts are of the same size")
    with _threads(3):
        threaded = one_round(method, start, devices, users)
    differences = []
    for other in (small, threaded):
        differences.append(same(other.seen, large.seen, tolerance))
        for name, value in contents(other.state).items():
            differences.append(close(value, contents(large.state)[name], name, tolerance))
    must(small.report.up_bytes == large.report.up_bytes, "the size of cohorts changes how many bytes are sent")
    losses = torch.tensor([[float("nan") if one.report.loss is None else one.report.loss] for one in (small, large)])
    close(losses[0], losses[1], "loss", tolerance)
    sizes = f"{len(large.sizes)} cohorts and {len(small.sizes)}, 1 thread and 3"
    return f"{sizes}: differences up to {max(differences):.1g}"


def absent_devices(method: DeviceMethod, devices: Devices, start: State) -> str:
    """Devices that take no part in a round stay as they are, and something else changes."""
    users = torch.tensor([1, 4, 6])
    before, after = contents(start), contents(one_round(method, start, devices, users).state)
    others = [user for user in range(len(devices)) if user not in users]
    for name, value in after.items():
        if name.startswith(("private ", "store ")):
            must(torch.equal(value[others], before[name][others]), f"{name} of a device that took no part has changed")
    must(any(not torch.equal(value, before[name]) for name, value in after.items()), "a round changes nothing at all")
    return f"{len(others)} of {len(devices)} devices took no part"


def repetition(method: DeviceMethod, devices: Devices, start: State) -> str:
    """A round is the same every time, and the next one draws other samples."""
    users = torch.arange(len(devices))
    first, again = (one_round(method, start, devices, users) for _ in range(2))
    for name, value in contents(again.state).items():
        must(torch.equal(value, contents(first.state)[name]), f"{name} differs when the same round is played again")
    other = one_round(method, start, devices, users, round_=3)
    anew = any(
        not torch.equal(seen.drawn["items"], other.seen[user].drawn["items"]) for user, seen in first.seen.items()
    )
    must(anew == (method.negatives > 0), "rounds do not draw samples as `negatives` says")
    return "twice the same to the last bit"


def declared_only(method: DeviceMethod, devices: Devices) -> str:
    """Only what `sends` declares leaves a device, in the declared shapes; which items a device touched leaves it only
    with rows of items."""
    sends, private = method.sends(), method.private()
    both = sorted({*sends, *method.shared()} & {*private})
    must(not both, f"'{', '.join(both)}' is private and shared or sent at the same time")
    must(tuple(field.name for field in fields(Update)) == FIELDS, "an update has other fields than are known here")
    n_items, start = devices.n_items, State.start(method, devices.n_items, len(devices), SEED)
    tables = {name for name, param in sends.items() if param.rows}
    everyone = torch.arange(len(devices))
    played = (cohort for round_ in (1, 2) for cohort in cohorts(method, start, devices, everyone, SEED, round_))
    for cohort in played:
        method.fit(cohort)
        message = method.message(cohort, start.shared)
        no_undeclared(method, message)
        update = update_of(method, cohort, start)
        must({*update.rows} <= tables and {*update.layers} <= {*sends} - tables, "rows and layers are mixed up")
        must(len(update) == len(cohort) == len(update.counts), "an update speaks for other devices than the cohort's")
        must(int(update.counts.sum()) == len(update.ids), "an update names other items than it has rows for")
        must(bool(tables) or not len(update.ids), "the items of a device are sent though no rows of items are")
        for name, value in {**update.rows, **update.layers}.items():
            count = len(update.ids) if name in tables else len(cohort)
            shape = (count, *sends[name].sized(n_items))
            must(value.shape == shape, f"'{name}' is sent as {[*value.shape]}, declared as {[*shape]}")
    return f"sent: {', '.join(sends) or 'nothing'}; kept: {', '.join(private) or 'nothing'}"


def no_undeclared(method: DeviceMethod, message: Params) -> None:
    """A message must not have names that the method does not declare."""
    undeclared = sorted({*message} - {*method.sends()})
    must(not undeclared, f"'{', '.join(undeclared)}' is sent, but `sends` does not declare it")


def private_state(method: DeviceMethod, devices: Devices, start: State, tolerance: float = TOLERANCE) -> str:
    """What a device learns and sends does not change when another device's private parameters do."""
    moved, one = start.copy(), torch.tensor([len(devices) - 1])
    part = moved.part(one)
    moved.fill(one, perturbed(part, 0.1))
    if not part:
        return "nothing is private"
    users = torch.arange(len(devices))
    before, after = (one_round(method, state, devices, users).seen for state in (start, moved))
    for seen in (before, after):
        del seen[int(one)]
    try:
        difference = same(after, before, tolerance)
    except Broken as error:
        raise Broken(f"another device's private parameters matter: {error}") from None
    return f"device {int(one)} changed: differences at the others up to {difference:.1g}"


def one_round(
    method: DeviceMethod,
    start: State,
    devices: Devices,
    users: Tensor,
    memory: float | None = None,
    round_: int = 2,
) -> Round:
    """Play a round from a copy of `start`."""
    state, seen, sizes = start.copy(), dict[int, Seen](), list[int]()

    def observe(cohort: Cohort) -> None:
        seen.update(_look(method, cohort, state))
        sizes.append(len(cohort))

    report = play(method, state, devices, users, SEED, round_, observe, memory)
    must(sorted(seen) == sorted(users.tolist()), "not every chosen device took part")
    return Round(state, seen, sizes, report)


def contents(state: State) -> Params:
    """All values of a state, every device's private tables written out in full."""
    flat = {f"shared {name}": value for name, value in state.shared.items()}
    flat |= {f"server {name}": value for name, value in state.server.items()}
    flat |= {f"private {name}": value for name, value in state.private.items()}
    for name, store in state.stores.items():
        owner, items = torch.arange(len(store.held)), torch.arange(len(store.start))
        flat[f"store {name}"] = store.take(owner, owner[:, None], items)
    return flat


def same(seen: dict[int, Seen], expected: dict[int, Seen], tolerance: float) -> float:
    """The largest difference between what devices learned; what they drew must be the same."""
    must(seen.keys() == expected.keys(), "other devices took part")
    largest = 0.0
    for user, (drawn, learned) in seen.items():
        for name, value in expected[user].drawn.items():
            must(torch.equal(drawn[name], value), f"device {user} has other {name}")
        for name, value in expected[user].learned.items():
            largest = max(largest, close(learned[name], value, f"device {user}, {name}", tolerance))
    return largest


def plain_mean(method: DeviceMethod, seen: dict[int, Seen], devices: Devices, shared: Params) -> Params:
    """The mean, or the sum, of what the devices sent (or the server made of it), every device written out in full."""
    made = [_made_of(method, user, one, shared) for user, one in seen.items()]
    known = [one for one in made if one is not None]
    if known:
        return {name: _mean(method, [one[name] for one in known]) for name in known[0]}
    mean = {}
    for name, param in method.sends().items():
        if not all(f"sent {name}" in one.learned for one in seen.values()):
            continue
        full = []
        for drawn, learned in seen.values():
            sent = learned[f"sent {name}"]
            if param.rows:
                table = torch.zeros(devices.n_items, *param.sized(devices.n_items))
                sent = table.index_copy(0, drawn["sent"], sent)
            full.append(sent)
        mean[name] = _mean(method, full)
    return mean


def _mean(method: DeviceMethod, values: list[Tensor]) -> Tensor:
    stacked = torch.stack(values)
    return stacked.sum(0) if method.sums else stacked.sum(0) / len(values)


def _made_of(method: DeviceMethod, user: int, seen: Seen, shared: Params) -> Params | None:
    """What the server makes of one device's message."""
    sent = {name: seen.learned[f"sent {name}"] for name in method.sends() if f"sent {name}" in seen.learned}
    message = {name: value if method.sends()[name].rows else value[None] for name, value in sent.items()}
    ids = seen.drawn["sent"]
    return method.receive(torch.tensor([user]), ids, torch.zeros_like(ids), message, shared)


def _look(method: DeviceMethod, cohort: Cohort, state: State) -> Iterator[tuple[int, Seen]]:
    """All that each device of a cohort holds and sends."""
    random = Simulated.of(SEED, cohort.round, cohort.users)
    update, _ = Link.of(method).channel.device(update_of(method, cohort, state), random)
    samples = cohort.samples
    sender = torch.repeat_interleave(torch.arange(len(cohort)), update.counts)
    for c, user in enumerate(cohort.users.tolist()):
        n, mine = int(samples.counts[c]), cohort.rows.owner == c
        order = torch.stack([samples.order(epoch)[c, :n] for epoch in range(method.epochs)])
        drawn = {"items": samples.items[c, :n], "labels": samples.labels[c, :n], "order": order}
        learned = {f"table {name}": table[mine] for name, table in cohort.tables.items()}
        learned |= {f"param {name}": value[c] for name, value in cohort.params.items()}
        learned |= {f"sent {name}": rows[sender == c] for name, rows in update.rows.items()}
        learned |= {f"sent {name}": layer[c] for name, layer in update.layers.items()}
        yield user, Seen({**drawn, "rows": cohort.rows.ids[mine], "sent": update.ids[sender == c]}, learned)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
