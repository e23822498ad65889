"""Federations in which tabs take the place of Python devices: the same numbers come of them."""

import time
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from tests.network.compare import assert_same, shared_after
from tests.network.federated import federated, hurry
from tests.web.federation.tab import TabNode
from tests.web.node import needs_node

from federec.network.catalogue import Catalogue
from federec.network.device_folder import shares
from federec.network.events import Events
from federec.network.keys import Key
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.network.server import Server, serve
from federec.network.settings import CATALOGUE, FederationSettings
from federec.runs.folder import RunFolder
from federec.runtimes.in_process import LOST, NONE, InProcess, Node

pytestmark = needs_node
SMALL = {"dim": 4, "item_lr_factor": 0.2, "batch": 16, "epochs": 2}


@pytest.fixture
def played(console, tmp_path, monkeypatch):
    """Play a federation in which some nodes are tabs; its folder, and the nodes."""
    hurry(monkeypatch)
    transports = []

    def play(
        name,
        data,
        method,
        tabs,
        rounds=3,
        faults=lambda node, kind, round_: NONE,
        kind=TabNode,
        before=lambda made: None,
        **how,
    ):
        values = {"settings": SMALL, "channel": ("secure-sum:most=16",), "minimum": 2} | how
        made = federated(tmp_path / name, data, method, nodes=data.n_users, rounds=rounds, **values)
        nodes = {
            number: kind(console, made.run, path, key) if number in tabs else Node(path, Key.file(key))
            for number, (path, key) in enumerate(shares(made.run))
        }
        transports.append(InProcess(nodes, faults))
        before(made)
        serve(transports[-1], made.run)
        return made, nodes

    yield play
    for transport in transports:
        transport.close()


@pytest.mark.parametrize("protocol", ["clean", "paper"])
@pytest.mark.parametrize("method", ["pfedrec", "fedmf"])
def test_a_round_with_two_tabs_is_one_with_two_python_devices(played, random_split, method, protocol):
    data = random_split(users=6, items=40).data
    ours, nodes = played("tabs", data, method, tabs=(1, 4), protocol=protocol)
    theirs, _ = played("python", data, method, tabs=(), protocol=protocol)
    assert nodes[1].told == [] == nodes[4].told
    assert ours.events("rejected") == []
    assert_same(ours.run, theirs.run)
    one, two = (shared_after(made.run)["shared:items"] for made in (ours, theirs))
    step = 2 * 16 / 2**24  # of a value; two tabs, three rounds
    assert float((one - two).abs().max()) <= 6 * step + 1e-5 * float(two.abs().max())
    losses = [[line["loss"] for line in RunFolder(made.run).lines(3)] for made in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_federation_of_tabs_learns_what_python_devices_learn(played, random_split):
    data = random_split(users=4, items=30).data
    ours, _ = played("tabs", data, "pfedrec", tabs=range(4), rounds=2)
    theirs, _ = played("python", data, "pfedrec", tabs=(), rounds=2)
    assert_same(ours.run, theirs.run)


def test_items_without_times_are_held_out_as_in_python(played, random_split):
    data = replace(random_split(users=4, items=30).data, times=None)
    ours, _ = played("tabs", data, "pfedrec", tabs=(0, 2), rounds=2)
    theirs, _ = played("python", data, "pfedrec", tabs=(), rounds=2)
    assert_same(ours.run, theirs.run)


@pytest.mark.parametrize("kind", ["share", "train", "unmask"])
def test_a_tab_that_is_closed_at_any_leg_does_not_matter_to_the_others(played, random_split, kind):
    def faults(node, each, round_):
        return LOST if (node, each, round_) == (1, kind, 1) else NONE

    data = random_split(users=6, items=40).data
    made, _ = played("tabs", data, "pfedrec", tabs=(1, 4), rounds=2, faults=faults, minimum=3)
    assert made.events("lost") == []
    assert len(made.events("round")) == 2


def test_a_tab_takes_in_new_items(played, random_split):
    data = random_split(users=4, items=30).data

    def grow(made):
        catalogue = Catalogue.read(made.run / CATALOGUE)
        (made.run / CATALOGUE).write_text(catalogue.grown(["a new item", "another"]).text())

    ours, nodes = played("tabs", data, "pfedrec", tabs=(0, 2), rounds=2, before=grow)
    theirs, _ = played("python", data, "pfedrec", tabs=(), rounds=2, before=grow)
    assert nodes[0].told == []
    assert len(shared_after(ours.run)["shared:items"]) == 32
    assert_same(ours.run, theirs.run)


# What a tab does not do


class Flattered(TabNode):
    """A tab whose gateway tells it where to start: from nothing, so that it would send nothing."""

    more: ClassVar[dict[str, Any]] = {"start": [0.0] * (SMALL["dim"] + 1)}


def test_a_gateway_cannot_choose_where_a_tab_starts(played, random_split):
    """Else a sum in which all tabs but one start from zero would be that one's update."""
    data = random_split(users=4, items=30).data
    ours, _ = played("tabs", data, "pfedrec", tabs=(0, 2), rounds=1, kind=Flattered)
    theirs, _ = played("python", data, "pfedrec", tabs=(), rounds=1)
    assert_same(ours.run, theirs.run)


def test_a_tab_keeps_its_parameters_only_under_the_settings_that_it_learned_with(alone, console):
    """A server cannot have a tab rank or learn with parameters that are read as those of another method."""
    items = alone.order.sizes[-1]
    console(
        """const state = await kept[name].store.get("device");
        Object.assign(state, {run, weights: {1: new Float32Array(5)}});
        await kept[name].store.put("device", state);""",
        name=alone.name,
        run=alone.order.run,
    )
    wider = alone.order.config | {"settings": alone.order.config["settings"] | {"dim": 8}}
    shared = Payload(torch.arange(items), {"items": torch.zeros(items, 8)})
    assert "have changed" in refusal(alone, asked(alone.order, kind="train", round=2, config=wider, shared=shared))


def asked(order, **values):
    """The order, with other values."""
    return replace(order, **values).pack()


@pytest.fixture
def alone(console, random_split, tmp_path, monkeypatch):
    """A tab of a federation that has not begun, and the orders of its server."""
    hurry(monkeypatch)
    made = federated(
        tmp_path / "run",
        random_split(users=4, items=30).data,
        "pfedrec",
        nodes=4,
        settings=SMALL,
        channel=("secure-sum",),
    )
    path, key = shares(made.run)[0]
    tab = TabNode(console, made.run, path, key)
    server = Server(
        InProcess({}), made.run, made.config, FederationSettings.read(made.run), Events(made.run / "e"), b"root"
    )
    tab.order = server.order("query", 1, next_="round 1, train")
    return tab


def refusal(tab, content):
    """Why a tab did not do what it was told. The server only hears that."""
    reply = Reply.parse(tab.answer(content))
    assert (reply.failed, reply.advert, reply.sealed) == ("device", b"", b"")
    return tab.told[-1]


def test_a_tab_joins_no_federation_that_would_read_what_it_sends(alone):
    config = alone.order.config
    assert Reply.parse(alone.answer(alone.order.pack())).advert
    for channel in ([], None, [{"stage": "clip", "norm": 1.0}], [{"stage": "gaussian", "scale": 9.0}]):
        why = refusal(alone, asked(alone.order, config=config | {"channel": channel}))
        assert "would read what each device sends" in why
    noise = [{"stage": "distributed-noise"}, {"stage": "secure-sum", "most": 16.0}]
    assert "a page only knows secure-sum" in refusal(alone, asked(alone.order, config=config | {"channel": noise}))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"method": "fedncf"}, "a page learns pfedrec or fedmf"),
        ({"method": "constructor"}, "a page learns pfedrec or fedmf"),
        ({"plugins": ["ldp"]}, "without plug-ins"),
        ({"settings": {"dim": 4}}, "settings of pfedrec"),
        ({"protocol": "mine"}, "protocol"),
        ({"attack": "promote"}, "attack"),
    ],
)
def test_a_tab_runs_only_what_it_knows(alone, change, why):
    assert why in refusal(alone, asked(alone.order, config=alone.order.config | change))


def test_a_tab_refuses_settings_out_of_bounds(alone):
    config = alone.order.config
    for change in ({"dim": 0}, {"batch": 0}, {"epochs": 10**9}, {"lr": "0.1"}, {"hidden": [5]}, {"negatives": 1.5}):
        refusal(alone, asked(alone.order, config=config | {"settings": config["settings"] | change}))


def test_a_round_that_would_freeze_the_page_is_refused(alone, console):
    """Settings that are each within their bounds, but not together."""
    console(
        "kept[name].picks = labels.map((label) => ({label, time: null}));",
        name=alone.name,
        labels=[str(item) for item in range(20)],
    )
    config, items, dim = alone.order.config, alone.order.sizes[-1], SMALL["dim"]
    shared = Payload(torch.arange(items), {"items": torch.zeros(items, dim)})
    long = config | {"settings": config["settings"] | {"epochs": 64, "negatives": 1000}}
    began = time.monotonic()
    why = refusal(alone, asked(alone.order, kind="train", config=long, shared=shared))
    assert time.monotonic() - began < 5
    assert why == f"a round would go through {18 * 1001 * 64} samples of 4 numbers, too many for a page"
    most = config | {"settings": config["settings"] | {"epochs": 1, "negatives": 1000}}
    assert "no part in" in refusal(
        alone, asked(alone.order, kind="train", config=most, shared=shared)
    )  # learned; no sum


def test_a_tab_takes_part_in_one_run_and_so_many_rounds(alone, console):
    assert "1000 rounds" in refusal(alone, asked(alone.order, round=1001))
    console(
        """const state = await kept[name].store.get("device");
        state.ledger.spent = {rounds: 3, runs: ["another run"]};
        await kept[name].store.put("device", state);""",
        name=alone.name,
    )
    assert "one run at a time" in refusal(alone, alone.order.pack())


def test_a_tab_checks_what_it_is_sent(alone):
    items, dim = alone.order.sizes[-1], SMALL["dim"]
    ids, rows = torch.arange(items), torch.zeros(items, dim)
    train = replace(alone.order, kind="train", shared=Payload(ids, {"items": rows}))
    for wrong, why in (
        (Payload(ids, {"items": rows + torch.nan}), "not numbers"),
        (Payload(ids, {"items": rows[:, :2]}), "other parameters"),
        (Payload(ids, {"items": rows, "more": rows.clone()}), "other parameters"),
        (Payload(ids[:5], {"items": rows[:5]}), "other parameters"),
        (Payload(ids.flip(0), {"items": rows}), "all items"),
    ):
        assert why in refusal(alone, replace(train, shared=wrong).pack())
    assert "that are not" in refusal(alone, replace(train, labels=["0"], sizes=[items, items + 1]).pack())
    assert "here are" in refusal(alone, replace(train, sizes=[items + 5]).pack())
    assert "no part in" in refusal(alone, train.pack())  # a secure sum that nobody has begun
    for leg in ("share", "unmask", "agree"):
        refusal(alone, replace(train, kind=leg).pack())


def test_a_tab_answers_once(played, random_split, console):
    """Whoever asks the same again gets the same bytes; in another group, or with other parameters, nothing."""
    data, seen = random_split(users=4, items=30).data, []

    class Asked(TabNode):
        def answer(self, content, crash=""):
            order = Order.parse(content)
            first = super().answer(content)
            if order.kind == "train" and not Reply.parse(first).failed:
                seen.append(order.round)
                assert super().answer(content) == first
                other = replace(order.shared, rows={"items": order.shared.rows["items"] + 1})
                for wrong in (replace(order, sealed=order.sealed + b"x"), replace(order, shared=other)):
                    assert "a device answers once" in refusal(self, wrong.pack())
                assert "answered already" in refusal(self, replace(order, round=order.round - 1 or 1, keep=9).pack())
            return first

    played("run", data, "pfedrec", tabs=(0,), rounds=2, kind=Asked)
    assert seen == [1, 2]


def test_a_tab_that_is_erased_while_it_learns_keeps_and_sends_nothing(played, random_split, console):
    seen = []

    class Erased(TabNode):
        def answer(self, content, crash=""):
            if Order.parse(content).kind != "train":
                return super().answer(content)
            body = """const tab = kept[name];
            const {picks} = tab.device;
            tab.device.picks = async () => (await tab.store.clear(), picks());
            const reply = await tab.device.answer(content);
            return [reply, (await tab.store.get("device")) ?? null];"""
            reply, state = console(body, name=self.name, content=content)
            seen.append((Reply.parse(reply).failed, Reply.parse(reply).sealed, state, self.told[-1]))
            return reply

    played("run", random_split(users=4, items=30).data, "pfedrec", tabs=(0,), rounds=1, kind=Erased)
    assert seen == [("device", b"", None, "this page has left the federation meanwhile")]


def test_what_a_tab_forgets_is_not_learned_from_again(played, random_split, console):
    """Private parameters that were learned from an item that the user has erased since are not used any more."""
    data, used = random_split(users=4, items=30).data, []

    class Forgetful(TabNode):
        def answer(self, content, crash=""):
            body = "const found = await kept[name].store.get('device'); return Object.keys(found.weights);"
            order, before = Order.parse(content), console(body, name=self.name)
            reply = super().answer(content)
            if order.kind == "train":
                used.append((before, console(body, name=self.name)))
                console("kept[name].picks = kept[name].picks.slice(1);", name=self.name)
            return reply

    played("run", data, "pfedrec", tabs=(0,), rounds=3, kind=Forgetful)
    assert used == [([], ["1"]), (["1"], ["2"]), (["2"], ["3"])]
