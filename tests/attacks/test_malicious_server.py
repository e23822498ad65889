"""A server that gives its own orders gets nothing from a device that its policy does not allow."""

import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.hostile import Attacker, prepared, told

from federec.network import secure_sum
from federec.network.certificates import Authority, Identity
from federec.network.messages import HEADER, MAGIC, PROTOCOL, Order
from federec.network.parameters import Payload
from federec.network.policy import COHORT, Policy
from federec.network.secure_sum import Party, _block, _message, _Tree
from federec.network.vector import length
from federec.stages.registry import parse

NODES, ITEMS = 12, 30


@pytest.fixture(scope="module")
def server(tmp_path_factory, random_split):
    """A server of its own mind. All devices have the default policy and have shared secrets for a first round."""
    data = random_split(users=NODES, items=ITEMS, least=4, most=9).data
    made = Attacker(prepared(tmp_path_factory.mktemp("server") / "run", data, nodes=NODES))
    for node in made.nodes:
        made.folder(node).pin(Policy())
    made.orders, made.collect = made.masking(range(NODES))
    yield made
    made.close()


@pytest.fixture
def good(server):
    """An order that the first device would carry out."""
    return server.orders[0]


def refuses(server, order, node=0):
    """Whether a device tells nothing and keeps nothing."""
    before = server.kept(node)
    reply = server.ask(node, order)
    return bool(reply.failed) and not told(reply) and server.kept(node) == before


def config(**changes):
    return lambda order: replace(order, config=order.config | changes)


def channel(*stages):
    return config(channel=list(parse(stages)))


def shared(change):
    return lambda order: replace(order, shared=change(order.shared))


def table(change):
    return shared(lambda old: Payload(old.ids, {"items": change(old.rows["items"].copy())}))


def one(value):
    def change(rows):
        rows[3, 1] = value
        return rows

    return table(change)


def codes(change):
    return shared(lambda old: Payload(change(old.ids.copy()), old.rows))


def sized(*sizes):
    return lambda order: replace(order, sizes=list(sizes))


def labelled(*labels):
    return lambda order: replace(order, labels=list(labels), sizes=[ITEMS, ITEMS + len(labels)])


def as_kind(kind, **changes):
    return lambda order: replace(order, kind=kind, **changes)


def query(change):
    return lambda order: change(replace(order, kind="query", shared=Payload.nothing(), sealed=b"", next="any"))


def json_with(old, new):
    """The message with another text in its metadata."""

    def change(order):
        content = order.pack()
        count = HEADER.unpack_from(content)[2]
        text, rest = content[HEADER.size : HEADER.size + count], content[HEADER.size + count :]
        assert old in text
        text = text.replace(old, new)
        return HEADER.pack(MAGIC, PROTOCOL, len(text)) + text + rest

    return change


ORDERS = {
    "another method": config(method="fedmf"),
    "a method of one place": config(method="ease", settings={}),
    "a file to run": config(method="/tmp/mine.py:Mine", sources={"/tmp/mine.py:Mine": "0" * 64}),
    "a module to run": config(method="os:system"),
    "a plug-in": config(plugins=["ldp"]),
    "no channel": channel(),
    "the default of simulations": config(channel=None),
    "whole tables": channel("dense"),
    "clipping": channel("clip:norm=1"),
    "noise": channel("clip:norm=1", "dense", "gaussian:scale=100"),
    "a stage that does not exist": config(channel=[{"stage": "secure-summ"}]),
    "settings that are none": config(settings={"dim": -4}),
    "a setting that does not exist": config(settings={"dim": 4, "tell": True}),
    "a configuration with more": config(more=1),
    "more rounds than allowed": lambda order: replace(order, round=1001),
    "the same for an evaluation": as_kind("evaluate", round=1001),
    "an evaluation in the clear": lambda order: channel()(as_kind("evaluate")(order)),
    "a full evaluation in the clear": lambda order: channel()(as_kind("evaluate", full=True)(order)),
    "a query for another method": query(config(method="fedmf")),
    "a query for a clear channel": query(channel()),
    "a query for a late round": query(lambda order: replace(order, round=1001)),
    "a query that shrinks the catalogue": query(sized(ITEMS - 1)),
    "a query with a strange label": query(labelled("a\x1b[2Jb")),
    "an evaluation in a sum of updates": as_kind("evaluate"),
    "NaN": one(np.nan),
    "infinity": one(-np.inf),
    "wide rows": table(lambda rows: np.tile(rows, (1, 2))),
    "too few rows": table(lambda rows: rows[:-1]),
    "doubles": table(lambda rows: rows.astype(np.float64)),
    "integers": table(lambda rows: rows.astype(np.int32)),
    "another name": shared(lambda old: Payload(old.ids, {"things": old.rows["items"]})),
    "a table too many": shared(lambda old: Payload(old.ids, {**old.rows, "more": old.rows["items"].copy()})),
    "a layer too many": shared(lambda old: Payload(old.ids, old.rows, {"more": np.ones(3, np.float32)})),
    "a table as a layer": shared(lambda old: Payload(old.ids, {}, {"items": old.rows["items"]})),
    "no parameters": shared(lambda old: Payload.nothing()),
    "a row twice": codes(lambda ids: np.where(ids == 4, 3, ids)),
    "rows in another order": codes(lambda ids: ids[::-1].copy()),
    "rows that are not there": codes(lambda ids: ids + 1),
    "rows below zero": codes(lambda ids: ids - 1),
    "a label that is no text": labelled("\x00"),
    "a label that is empty": labelled(""),
    "a label of a megabyte": labelled("x" * 2**20),
    "half a character": labelled("\ud800"),
    "a label that is a number": json_with(b'"labels": []', b'"labels": [7]'),
    "items that are there already": lambda order: labelled("0")(order),
    "a smaller catalogue": sized(ITEMS - 1),
    "a larger catalogue without labels": sized(ITEMS, ITEMS + 1),
    "a catalogue that shrank once": sized(ITEMS, ITEMS - 1, ITEMS),
    "a catalogue that grew by nothing": sized(*[ITEMS] * 10_000),
    "no sizes": sized(),
    "a size below zero": sized(-1, ITEMS),
    "a size that is huge": sized(2**40),
    "a size that is no number": json_with(b'"sizes": [30]', b'"sizes": ["30"]'),
    "a size that is a fraction": json_with(b'"sizes": [30]', b'"sizes": [30.0]'),
    "a round that is no number": json_with(b'"round": 1,', b'"round": 1.0,'),
    "a round below zero": lambda order: replace(order, round=-1),
    "a round of 5,000 digits": json_with(b'"round": 1,', b'"round": 1' + b"0" * 4999 + b","),
    "a field too many": json_with(b'"round": 1,', b'"round": 1, "more": 1,'),
    "nested JSON": json_with(b'"labels": []', b'"labels": ' + b"[" * 100_000 + b"]" * 100_000),
    "an unknown kind": as_kind("steal"),
    "keys of another sum": as_kind("share"),
    "an agreement nobody asked for": as_kind("agree", sealed=_message(b"\xff\xf0")),
    "unmasking before masking": as_kind("unmask", sealed=_message(b"\xff\xf0")),
    "no secrets of neighbours": lambda order: replace(order, sealed=b""),
    "half of the neighbours' secrets": lambda order: replace(order, sealed=order.sealed[: len(order.sealed) // 2]),
    "secrets that cannot be opened": lambda order: replace(
        order, sealed=order.sealed[:3] + bytes(len(order.sealed) - 3)
    ),
    "a state that is not kept": lambda order: as_kind("evaluate", keep=5)(order),
    "a message that is cut off": lambda order: order.pack()[:-7],
    "half a header": lambda order: order.pack()[:9],
    "another version": lambda order: HEADER.pack(MAGIC, PROTOCOL + 1, 0) + order.pack()[HEADER.size :],
    "garbage": lambda order: bytes(range(256)) * 40,
    "nothing": lambda order: b"",
}


@pytest.mark.parametrize("case", ORDERS)
def test_an_order_that_the_policy_does_not_allow_brings_nothing_and_changes_nothing(server, good, case):
    order = ORDERS[case](good)
    assert refuses(server, order), case


def test_the_order_itself_is_carried_out(server, good):
    """So that each refusal above is one of the change alone. Then come the last leg and its abuse."""
    answers = {node: server.ask(node, order) for node, order in server.orders.items()}
    assert not any(reply.failed or reply.sums or reply.update.rows for reply in answers.values())
    arrived = server.collect.inputs({node: reply.sealed for node, reply in answers.items()})
    unmask = Order("unmask", "run", 1, {}, [ITEMS])
    place, everyone = server.collect.places[0], np.ones(NODES, bool)
    sets = {"without this device": everyone.copy(), "of too few": everyone.copy(), "of nobody": ~everyone}
    sets["without this device"][place] = False
    sets["of too few"][[at for at in range(NODES) if at != place][: NODES - COHORT + 1]] = False
    for name, members in sets.items():
        sealed = _message(np.packbits(members).tobytes())
        assert refuses(server, replace(unmask, sealed=sealed)), name
    strangers = _message(b"\xff\xff")  # nodes 13 to 16 of 12
    assert refuses(server, replace(unmask, sealed=strangers))
    assert not server.ask(0, replace(unmask, sealed=arrived[0])).failed
    for other in range(NODES):  # the other kind of share of any neighbour
        members = everyone.copy()
        members[other] = False
        assert refuses(server, replace(unmask, sealed=_message(np.packbits(members).tobytes()))), other
    assert refuses(server, replace(unmask, sealed=arrived[0]))  # nor the same again


def roster(server, contents, place):
    """What a server tells the device at `place`, whatever the adverts are."""
    tree = _Tree(contents)
    count = length(server.method.sends(), ITEMS)
    head = struct.pack(">16sIIBI", bytes(16), len(contents), place, 32, count)
    others = [at for at in range(len(contents)) if at != place]
    return _message(head, tree.root, *(_block("H", contents[at]) for at in others))


@pytest.fixture
def neighbours(attacker):
    """A server, and how it asks the first device to share with others: by what comes instead of their adverts."""
    server = attacker(nodes=NODES)
    server.pin(cohort=COHORT)
    order = server.order()
    name, adverts = server.adverts(order, range(NODES))
    publics = {node: server.folder(node).identity.public for node in server.nodes}

    def ask(changed=lambda adverts, publics: None):
        own, keys = dict(adverts), dict(publics)
        changed(own, keys)
        nodes = sorted(own, key=lambda node: keys[node])
        sealed = roster(server, [own[node] for node in nodes], nodes.index(0))
        return Order("share", order.run, 1, {}, [ITEMS], sealed=sealed)

    def replaced(authority, days=365, run=f"{order.run}, {name}"):
        """The last neighbour is another one."""
        new = Identity.new()
        certificate = authority.admit(new.request(), days=days)
        member = new.admitted(certificate, authority.pem)

        def change(adverts, publics):
            adverts[NODES - 1], publics[NODES - 1] = Party.begin(member, run).advert, new.public

        return change

    return server, ask, replaced


def test_a_device_hides_only_among_certified_neighbours(neighbours, tmp_path, monkeypatch):
    server, ask, replaced = neighbours
    own, foreign = Authority.read(server.path / "tls"), Authority.create(tmp_path / "foreign")

    def twice(adverts, publics):
        adverts[NODES - 1], publics[NODES - 1] = adverts[NODES - 2], publics[NODES - 2]

    def bare(adverts, publics):
        adverts[NODES - 1] = b"\x01\x00\x00" + adverts[NODES - 1][3:]

    def few(adverts, publics):
        for node in range(COHORT - 1, NODES):
            del adverts[node]

    def itself(adverts, publics):
        adverts[NODES - 1], publics[NODES - 1] = adverts[0], publics[0] + b"\0"

    changes = {
        "another root": replaced(foreign),
        "another round": replaced(own, run="run, round 2, train"),
        "a node twice": twice,
        "the device itself twice": itself,
        "no certificate": bare,
        "too few": few,
    }
    for name, change in changes.items():
        assert refuses(server, ask(change)), name
    expired = ask(replaced(own, days=1))
    with monkeypatch.context() as patch:
        patch.setattr(secure_sum.datetime, "datetime", Later)
        assert refuses(server, expired)
    assert not server.ask(0, ask(replaced(own))).failed  # while one that the root has admitted is as good as another


class Later(datetime):
    @classmethod
    def now(cls, zone=None):
        return datetime.now(UTC) + timedelta(days=2)


def test_rounds_and_noise_that_were_pinned(attacker):
    server = attacker(nodes=6)
    pinned = parse(("clip:norm=1", "gaussian:scale=0.1", "secure-sum"))
    server.pin(channel=tuple(pinned), rounds=2, runs=9)
    weaker = ("secure-sum",), ("clip:norm=1", "secure-sum"), ("clip:norm=2", "gaussian:scale=0.1", "secure-sum")
    weaker += ("clip:norm=1", "gaussian:scale=0.09", "secure-sum"), ("clip:norm=1", "laplace:scale=1", "secure-sum")
    weaker += (("gaussian:scale=0.1", "secure-sum"), ("clip:norm=1", "gaussian:scale=0.1"))
    orders, _ = server.masking(range(6), with_channel(server.order(), pinned))
    for stages in weaker:
        assert refuses(server, with_channel(orders[0], parse(stages))), stages
    assert not server.ask(0, orders[0]).failed
    assert refuses(server, with_channel(server.order("query", 3), pinned))
    assert server.sum(with_channel(server.order(run="two"), pinned), range(6)) is not None
    third, _ = server.masking(range(6), with_channel(server.order(run="three"), pinned))
    assert refuses(server, third[0])  # a new run does not begin to count anew
    assert not server.ask(1, third[1]).failed  # which has answered only once


def with_channel(order, stages):
    return replace(order, config=order.config | {"channel": list(stages)})


def test_the_budget_ends(attacker):
    server = attacker(nodes=6)
    server.pin(channel=None, budget=13.0)
    stages = parse(("clip:norm=0.05", "dense", "gaussian:scale=0.05"))
    order = with_channel(server.order(), stages)
    assert refuses(server, with_channel(order, parse(("clip:norm=0.05", "gaussian:scale=0.05"))))  # not on all rows
    assert refuses(server, with_channel(order, parse(("dense", "gaussian:scale=0.05"))))
    assert not server.ask(0, order).failed
    assert refuses(server, replace(order, round=2))


def test_nobody_reads_a_devices_errors(server, good):
    """What goes wrong is told in the device's own log, not to the server."""
    reply = server.ask(0, replace(good, config=good.config | {"method": "/no/such/file.py:Mine"}))
    assert reply.failed == "device"
    assert str(Path.home()) not in repr(reply) and "file.py" not in repr(reply)
