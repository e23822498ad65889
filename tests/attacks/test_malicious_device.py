"""One registered device that answers with whatever it likes neither ends, nor changes, nor slows down a run."""

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from tests.attacks.hostile import Attacker, prepared
from tests.network.compare import shared_after

from federec.errors import UserError
from federec.network import messages
from federec.network.exchange import read
from federec.network.guard import REASONS, Rejection
from federec.network.messages import HEADER, MAGIC, PROTOCOL, Reply, parts
from federec.network.server import Server
from federec.network.settings import FederationSettings
from federec.network.transport import Delivery
from federec.runtimes.in_process import LOST, NONE, SILENT, Fault

DEADLINE = 5.0


def packed(metadata, tensors):
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    rest = tensors if isinstance(tensors, bytes) else save(tensors)
    return HEADER.pack(MAGIC, PROTOCOL, len(text)) + text + rest


def told(**fields):
    """A reply with other fields; what is JSON only for Python, such as NaN, included."""

    def change(content):
        text, tensors = parts(content)
        return packed(json.loads(text) | fields, tensors)

    return change


def sent(change):
    """A reply with other tensors."""

    def changed(content):
        text, tensors = parts(content)
        return packed(text, change(load(tensors)))

    return changed


def raw(change):
    """A reply with another JSON text, of any kind."""

    def changed(content):
        text, tensors = parts(content)
        return packed(change(text), tensors)

    return changed


def each(kind, change):
    """Other values of all tensors of a kind."""
    return sent(lambda old: {name: change(value) if name.startswith(kind) else value for name, value in old.items()})


def wanted(*codes):
    return sent(lambda old: old | {"wanted": torch.tensor(codes, dtype=torch.int32)})


MALFORMED = {
    "a tensor nobody asked for": sent(lambda old: old | {"rows:evil": torch.ones(3, 3)}),
    "a tensor of another kind": sent(lambda old: old | {"evil": torch.ones(3)}),
    "a layer nobody asked for": sent(lambda old: old | {"layers:evil": torch.ones(3)}),
    "infinity in a sum": told(sums={"loss": [float("inf"), 3]}),
    "NaN in a sum": told(sums={"loss": [float("nan"), 3]}),
    "a sum beyond all floats": raw(lambda text: text.replace(b'"sums": {', b'"sums": {"x": [1e999, 1], ', 1)),
    "NaN for a round": told(round=float("nan")),
    "NaN for a number of users": told(devices=float("nan")),
    "10^12 users": told(devices=10**12),
    "users below zero": told(devices=-1),
    "more users than it was admitted for": told(devices=1000),
    "a version of 5,000 digits": told(catalogue="9" * 5000 + "-0123456789ab"),
    "a round of 5,000 digits": raw(lambda text: text.replace(b'"round": ', b'"round": ' + b"9" * 5000)),
    "another version of the catalogue": told(catalogue="30-0123456789ab"),
    "deeply nested JSON": raw(lambda text: b"[" * 30_000 + b"]" * 30_000),
    "nested sums": raw(
        lambda text: text.replace(b'"sums": {', b'"sums": {"x": ' + b"[" * 9000 + b"]" * 9000 + b", ", 1)
    ),
    "JSON that is no object": raw(lambda text: b"[]"),
    "a megabyte of JSON": told(run="x" * 2**20),
    "100,000 sums": told(sums={str(number): [1.0, 1] for number in range(100_000)}),
    "no JSON": raw(lambda text: b"\xff\xfe" * 50),
    "a field too many": told(more=1),
    "repeated rows wanted": wanted(3, 3, 4),
    "unsorted rows wanted": wanted(5, 4, 3),
    "rows wanted that are not there": wanted(1, 2, 10**6),
    "rows wanted below zero": wanted(-5, 1),
    "millions of rows wanted": sent(lambda old: old | {"wanted": torch.arange(4_000_000, dtype=torch.int32)}),
    "another round": told(round=77),
    "another run": told(run="another"),
    "a failure with an update": told(failed="x" * 100),
    "no tensors": lambda content: packed(parts(content)[0], b""),
    "tensors that end too soon": lambda content: content[:-9],
    "half of it": lambda content: content[: len(content) // 2],
    "a header that names 2^62 bytes": lambda content: packed(parts(content)[0], (2**62).to_bytes(8, "little") + b"{}"),
    "another protocol": lambda content: HEADER.pack(MAGIC, 9, 4) + content[HEADER.size :],
    "garbage": lambda content: np.random.default_rng(1).bytes(5000),
    "nothing": lambda content: b"",
    "a huge message": lambda content: content + bytes(2**21),
}
CLEAR = MALFORMED | {
    "NaN in its rows": each("rows:", lambda rows: rows * torch.nan),
    "infinity in its rows": each("rows:", lambda rows: rows + torch.inf),
    "wide rows": each("rows:", lambda rows: rows.repeat(1, 3)),
    "doubles": each("rows:", lambda rows: rows.double()),
    "numbers that are no floats": each("rows:", lambda rows: rows.to(torch.int64)),
    "half floats": each("rows:", lambda rows: rows.half()),
    "flat rows": each("rows:", lambda rows: rows.flatten()),
    "rows of no items": each("ids", lambda ids: ids + 10_000),
    "rows in another order": each("ids", lambda ids: ids.flip(0)),
    "an item twice": each("ids", lambda ids: ids * 0),
    "a norm of 10^30": each("rows:", lambda rows: rows * 1e30),
    "a norm of 1,000 times the usual": each("rows:", lambda rows: rows * 1000),
}


def sealed(change):
    return each("sealed", change)


def shortened(value):
    return value[:-5]


def flipped(value):
    value = value.clone()
    value[40:] ^= 255
    return value


SECURE = MALFORMED | {
    "an update beside the masked one": sent(lambda old: old | {"rows:items": torch.ones(3, 4)}),
    "masked values that are cut off": sealed(shortened),
    "no masked values": sealed(lambda value: value[:0]),
    "a masked vector for another order": sealed(lambda value: torch.cat([value[:1], value[1:].flip(0)])),
}
RUNS = {"clear": (CLEAR, {}), "secure": (SECURE, {"channel": ("secure-sum",)})}
# Every reply is tried at the server by itself. Whole runs with one of them are many: most of these are `slow`.
LARGE = {"a norm of 10^30", "a norm of 1,000 times the usual"}  # than those of the others
RUN = {*LARGE, *(name for name in SECURE if name not in MALFORMED)}
SLOW = {
    (kind, name)
    for kind, (cases, _) in RUNS.items()
    for place, name in enumerate(cases)
    if name not in RUN and place % 6 != (kind == "secure")
}
CASES = [
    pytest.param(kind, name, id=f"{kind}, {name}", marks=pytest.mark.slow if (kind, name) in SLOW else ())
    for kind, (cases, _) in RUNS.items()
    for name in cases
]


@pytest.fixture(scope="module")
def kept():
    """Runs that several tests compare with, by their names."""
    return {}


@pytest.fixture
def play(federation, random_split, tmp_path, monkeypatch):
    monkeypatch.setattr(messages, "MOST_BYTES", 2**20)  # so that a message that is too long fits into a test
    data = random_split(users=12, items=30, least=4, most=9).data

    def play(kind, faults, name, nodes=6, rounds=4, cohort=None, **more):
        how = {"settings": {"dim": 4, "item_lr_factor": 0.2}, "nodes": nodes, "rounds": rounds, "deadline": DEADLINE}
        made = federation(data, faults=faults, at=tmp_path / name, **how, **RUNS[kind][1], **more)
        for node in range(nodes if cohort else 0):
            folder = made.folder(node)
            folder.pin(folder.policy.model_copy(update={"cohort": cohort}))
            folder.close()
        waits: list[float] = []  # what the server waited: on a busy machine other seconds say nothing
        server = threading.get_ident()

        def sleep(seconds, real=time.sleep):
            if threading.get_ident() == server:  # nodes of other tests may still look for their server
                waits.append(seconds)
            real(seconds)

        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", sleep)
            made.result = made.serve()
        made.seconds = sum(waits)
        made.shared = shared_after(made.run)
        assert all(bool(value.isfinite().all()) for value in made.shared.values())
        assert made.result["rounds"] == rounds
        return made

    return play


def at(kind, fault, node=0):
    return lambda number, asked, round_: fault if (number, asked) == (node, kind) else NONE


@pytest.fixture(scope="module")
def asked(tmp_path_factory, random_split):
    """A server that has asked a device to train, its order, and the device's reply."""
    data = random_split(users=6, items=30, least=4, most=9).data
    attacker = Attacker(prepared(tmp_path_factory.mktemp("asked") / "run", data, channel=()))
    settings, events = FederationSettings.read(attacker.path), SimpleNamespace(say=lambda *_, **__: None)
    server = Server(SimpleNamespace(users=lambda node: 1), attacker.path, attacker.config, settings, events, b"")
    known = SimpleNamespace(catalogue=attacker.catalogue.version, wanted=torch.arange(30))
    order = server.order("train", 1, known)
    reply = attacker.nodes[0].answer(order.pack())
    attacker.close()
    return server, order, reply


@pytest.mark.parametrize("case", [case for case in CLEAR if case not in LARGE])
def test_a_malformed_reply_is_refused(asked, monkeypatch, case):
    monkeypatch.setattr(messages, "MOST_BYTES", 2**20)
    server, order, good = asked
    assert server.fault(0, order, Reply.parse(good), {}) is None  # only the change is refused
    reply = read(0, Delivery("", CLEAR[case](good)))
    wrong = reply if isinstance(reply, Rejection) else server.fault(0, order, reply, {})
    assert wrong is not None and wrong.reason in {*REASONS, "failed", "version"}
    assert len(wrong.detail) <= 250


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "case"), CASES)
def test_a_malformed_reply_is_refused_and_the_run_ends_as_without_it(play, kept, kind, case):
    if kind not in kept:
        kept[kind] = play(kind, at("train", LOST), "without", rounds=2)
    lost = kept[kind]
    bad = play(kind, at("train", Fault(change=RUNS[kind][0][case])), "bad", rounds=2)
    assert bad.events("lost") == []
    refused = bad.events("rejected")
    assert [(line["device"], line["round"]) for line in refused] == [("0", 1)]  # skipped in the second round
    assert all(len(line["detail"]) <= 250 for line in refused)
    assert bad.shared.keys() == lost.shared.keys()
    for name, value in lost.shared.items():
        assert torch.equal(bad.shared[name], value)
    assert bad.seconds < lost.seconds + DEADLINE


@pytest.mark.thorough
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("asked", ["query", "share", "train", "unmask"])
def test_a_silent_device_costs_no_deadline(play, kind, asked):
    if kind == "clear" and asked in ("share", "unmask"):
        pytest.skip("there is no such leg in the clear")
    silent = play(kind, at(asked, SILENT), "silent", rounds=8, expected=5)
    assert {line["device"] for line in silent.events("missing")} == {"0"}
    assert silent.seconds < DEADLINE  # eight rounds together
    assert (
        len([line for line in silent.events("missing") if line["kind"] == asked]) <= 4
    )  # rounds 1, 4 and the last one


LEGS = {
    "an advert of garbage": ("query", each("advert", flipped)),
    "no advert": ("query", each("advert", lambda value: value[:0])),
    "shares of garbage": ("share", sealed(flipped)),
    "shares that are cut off": ("share", sealed(shortened)),
    "an answer of garbage": ("unmask", sealed(flipped)),
    "an answer that is cut off": ("unmask", sealed(shortened)),
    "an answer with an update": ("unmask", sent(lambda old: old | {"rows:items": torch.ones(3, 4)})),
    "a version of another catalogue in a leg": ("share", told(catalogue="9" * 9 + "-0123456789ab")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", LEGS)
def test_a_device_that_breaks_a_leg_of_a_sum_is_left_out_of_it(play, kept, case):
    """All rounds have a sum over the others, or over all where the device's values had arrived before."""
    leg, change = LEGS[case]
    bad = play("secure", at(leg, Fault(change=change)), "bad", rounds=5)
    if "good" not in kept:
        kept["good"] = play("secure", lambda *_: NONE, "good", rounds=5)
    good = kept["good"]
    assert bad.events("spoiled") == []
    assert len(bad.events("lost")) <= 2  # where it shares what is not its secrets, in rounds 1 and 4
    assert bad.seconds < good.seconds + DEADLINE + 1
    distance = sum(float((bad.shared[name] - value).norm()) for name, value in good.shared.items())
    assert distance < 0.5 * sum(float(value.norm()) for value in good.shared.values())


def garbage(content):
    """A masked vector of nothing but noise, in which all is well besides."""

    def change(value):
        noise = torch.frombuffer(bytearray(np.random.default_rng().bytes(len(value) - 33)), dtype=torch.uint8)
        return torch.cat([value[:33], noise])

    return sealed(change)(content)


@pytest.mark.thorough
def test_a_device_that_spoils_every_sum_is_found_in_the_third_round(play):
    spoiled = play("secure", at("train", Fault(change=garbage)), "spoiled", nodes=12, rounds=6, minimum=4, cohort=4)
    named = [line for line in spoiled.events("rejected") if line["device"] == "0"]
    assert named[0]["round"] == 3
    assert [line["round"] for line in spoiled.events("lost")] == [1]  # from then on in groups, of which one is spoiled
    good = play("secure", lambda *_: NONE, "good", nodes=12, rounds=6, minimum=4, cohort=4)
    distance = sum(float((spoiled.shared[name] - value).norm()) for name, value in good.shared.items())
    assert distance < 0.5 * sum(float(value.norm()) for value in good.shared.values())
    assert spoiled.seconds < good.seconds + DEADLINE


@pytest.mark.thorough
def test_in_a_small_federation_a_device_that_spoils_every_sum_stops_the_run(play):
    """With fewer nodes than two sums need it cannot be told from the others. Nothing wrong is learned."""
    with pytest.raises(UserError, match="3 rounds in a row"):
        play("secure", at("train", Fault(change=garbage)), "spoiled", nodes=3, rounds=4, minimum=3)


@pytest.mark.thorough
def test_with_a_few_nodes_to_spare_a_device_that_spoils_every_sum_is_left_out(play):
    """12 nodes, 8 of which are needed: only one sum at a time, from which those that were part of spoiled ones are
    left out."""
    run = play("secure", at("train", Fault(change=garbage)), "spoiled", nodes=12, rounds=16, minimum=8)
    lost = [line["round"] for line in run.events("lost")]
    assert 1 <= len(lost) <= 11
    assert run.result["rounds"] == 16
