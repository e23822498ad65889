"""Nodes with torch and nodes without it send the same, and are one federation."""

import hashlib
import itertools

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="pip install federec[device]")

from federec.data.split import hold_out
from federec.errors import UserError
from federec.federation.channel import Channel
from federec.federation.state import State
from federec.network import engines
from federec.network.engines import Task, engine_of
from federec.network.light_engine import LightEngine
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.network.recommend import scored
from federec.network.torch_engine import TorchEngine
from federec.network.vector import flat
from federec.runs.config import RunConfig
from federec.stages.clip import Clip
from federec.stages.secure_sum import SecureSum

ITEMS, USERS = 60, 4
CASES = [("pfedrec", ()), ("fedmf", ()), ("fedmf", ("sam",)), ("fedrap", ()), ("fedrecon", ())]
ABSENT = "needs the package torch; install it with: pip install 'federec\\[train\\]'"


def make_task(method, plugins, small, random_split, channel=(), share=1.0):
    """A task of a node with some of the rows, or all."""
    data = random_split(users=USERS, items=ITEMS).data
    settings = small(method).model_dump(mode="json")
    config = RunConfig.checked(method=method, plugins=plugins, settings=settings, data="small", rounds=5, seed=9)
    built, split = config.build(), hold_out(data, 9, numbers=np.array([3, 1 << 40, 77, 12]))
    sizes = [ITEMS - 5, ITEMS]
    shared = State.start(built, sizes[0], 0, 9).grown(built, ITEMS, 9).shared
    ids = np.arange(int(ITEMS * share))
    payload = Payload(ids, {name: value.numpy()[ids] for name, value in shared.items() if built.shared()[name].rows})
    return Task(config, built, Channel(channel), split, sizes, payload)


@pytest.mark.parametrize(("method", "plugins"), CASES)
@pytest.mark.parametrize("channel", [(), (SecureSum(),)], ids=["clear", "secure-sum"])
def test_both_engines_send_the_same(method, plugins, channel, small, random_split):
    task = make_task(method, plugins, small, random_split, channel)
    torch_, light = TorchEngine(task), LightEngine(task)
    assert torch_.users.tolist() == light.users.tolist()
    states = torch_.start(), light.start()
    for round_ in (1, 2):
        assert torch_.needed(round_).tolist() == light.needed(round_).tolist()
        (sums, sent), (mine, own) = torch_.train(states[0], round_), light.train(states[1], round_)
        assert_same(sums, mine)
        assert sent.ids.tolist() == own.ids.tolist()
        for name, rows in sent.rows.items():
            assert np.abs(rows).max() > 0.01
            assert np.allclose(own.rows[name], rows, rtol=1e-5, atol=1e-5)
        if channel:
            vectors = [
                flat(
                    Reply("run", round_, "", USERS, *told), task.channel.sends(task.method.sends(), ITEMS), ITEMS, 64.0
                )
                for told in ((sums, "", sent), (mine, "", own))
            ]
            assert np.abs(vectors[0] - vectors[1]).max() <= 1
        for full in (False, True):
            assert_same(*(e.evaluate(s.copy(), round_ + 1, full) for e, s in zip((torch_, light), states, strict=True)))
        for user in range(USERS):
            assert np.allclose(light.scores(user, states[1]), torch_.scores(user, states[0]), rtol=1e-4, atol=1e-5)
            tuned = [e.tuned(user, s.copy(), 3) for e, s in zip((torch_, light), states, strict=True)]
            assert np.allclose(*tuned, rtol=1e-4, atol=1e-4)


def assert_same(sums, mine):
    assert sums.keys() == mine.keys()
    for name, (total, count) in sums.items():
        assert mine[name] == (pytest.approx(total, rel=1e-5, abs=1e-6), count), name


def test_what_was_not_sent_is_not_ranked(small, random_split):
    task = make_task("fedmf", (), small, random_split, share=0.5)
    (torch_, light) = TorchEngine(task), LightEngine(task)
    sums, mine = (engine.evaluate(engine.start(), 1, False) for engine in (torch_, light))
    assert not any(" full " in name for name in mine)
    assert_same(sums, mine)


@pytest.mark.parametrize("method", ["pfedrec", "fedrap"])
@pytest.mark.parametrize("channel", [("dense",), ("secure-sum",)], ids=lambda channel: channel[0])
def test_a_federation_of_both_kinds_of_nodes(method, channel, small, random_split, federation, monkeypatch, tmp_path):
    """Every second order meets a node without torch; what comes of it is what comes of torch alone."""
    data, settings = random_split(users=6, items=30).data, small(method).model_dump()
    results = []
    for turns, at in ((itertools.repeat(True), "torch"), (itertools.cycle((True, False)), "both")):
        monkeypatch.setattr(engines, "has_torch", lambda turns=turns: next(turns))
        made = federation(data, method, nodes=3, rounds=3, settings=settings, channel=channel, at=tmp_path / at)
        results.append((made.serve(), [scored(made.folder(node), 0) for node in range(3)]))
        assert not made.events("rejected") and not made.events("missing")
    (whole, scores), (both, mixed) = results
    assert both["best_round"] == whole["best_round"]
    for part in ("valid", "test"):
        for kind, metrics in whole[part].items():
            assert both[part][kind] == pytest.approx(metrics, abs=1e-6), (part, kind)
    assert np.allclose(scores, mixed, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("method", "plugins", "channel", "what"),
    [
        ("fedncf", (), (), "'fedncf' as it is set"),
        ("fedmf", ("plgc",), (), "'fedmf\\+plgc' as it is set"),
        ("local-only", (), (), "'local-only' as it is set"),
        ("pfedrec", (), (Clip(norm=1.0),), "stage 'clip'"),
    ],
)
def test_what_needs_torch_says_so(method, plugins, channel, what, small, random_split, monkeypatch):
    monkeypatch.setattr(engines, "has_torch", lambda: False)
    task = make_task(method, plugins, small, random_split, channel)
    with pytest.raises(UserError, match=f"{what} {ABSENT}"):
        engine_of(task)


def test_an_order_is_the_same_bytes_as_in_versions_that_made_it_of_tensors():
    """Devices of a secure sum also compare its digest."""
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    order = Order("train", "run", 1, {"seed": 1}, [3], shared=Payload(np.arange(3), {"items": rows}))
    assert order.digest == "1aaf256534ba432bd4427168cbf14a8f789c4737a9bc97464bfead47b4dce0dc"
    packed = hashlib.sha256(order.pack()).hexdigest()
    assert packed == "c856dc2377846641111993602d2c18feebe47d5b30eafc00d7ec963ad04e117b"
