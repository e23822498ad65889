"""Whatever arrives, or lies on the disk, is refused in an orderly way: no crash, no hang, nothing else is believed."""

import contextlib
import json
import logging
import os
import random
import resource
import time
from contextlib import closing, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.attacks.hostile import Attacker, prepared, told

from federec.errors import UserError
from federec.network.catalogue import Catalogue, is_text
from federec.network.device import answer
from federec.network.device_folder import FILE, DeviceFolder
from federec.network.exchange import read
from federec.network.guard import REASONS, Rejection
from federec.network.hiding import Sums
from federec.network.keys import Key
from federec.network.messages import HEADER, MAGIC, PROTOCOL, Reply, parts
from federec.network.policy import Policy
from federec.network.server import Server, known_items
from federec.network.settings import FederationSettings
from federec.network.transport import Delivery
from federec.network.vault import Vault
from federec.runs.folder import RunFolder

pytestmark = pytest.mark.thorough
COUNT = int(os.environ.get("FEDEREC_FUZZ", "1000"))
"""Mutations of each kind; more of them find more, and take longer."""
ITEMS = 30
KEY = Key("file", b"k" * 32)
EXTREME = [0, -1, 1, 2**31, 2**63, 10**12, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x", "9" * 5000, None]
EXTREME += [True, [], {}, [[]], {"": {}}, "\x00", "\ud800", [1] * 3000, "30-0123456789ab", {"x": [1.0, 1]}, -(10**30)]


@pytest.fixture(autouse=True)
def bounds(caplog):
    """Memory and time of each of these tests."""
    caplog.set_level(logging.CRITICAL, "federec.device")  # which would have ten thousand errors to tell
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024  # kB
    assert time.monotonic() - began < 120


def shaken(draw, content):
    """Bytes that were flipped, cut, doubled, moved or lengthened, at one to three places."""
    content = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        at, size = draw.randrange(len(content) + 1), draw.choice((1, 1, 2, 8, 60))
        kind = draw.randrange(6)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content[at : at + size] = draw.randbytes(size)
        elif kind == 2:
            del content[at:]
        elif kind == 3:
            content[at:at] = content[at : at + size]
        elif kind == 4:
            del content[at : at + size]
        else:
            content += draw.randbytes(size)
    return bytes(content)


def spliced(draw, value):
    """JSON of which one value, anywhere in it, is an extreme one; or one field is gone, or there is one more."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        name, kind = draw.choice(sorted(value)), draw.random()
        if kind < 0.1:
            return {key: each for key, each in value.items() if key != name}
        if kind < 0.2:
            return value | {draw.choice(("more", name + "x", "")): draw.choice(EXTREME)}
        return value | {name: spliced(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], spliced(draw, value[at]), *value[at + draw.randrange(2) :]]
    return draw.choice(EXTREME)


def mutated(draw, content):
    """A message of which the JSON, the header of its tensors, or any bytes are others."""
    text, tensors = parts(content)
    kind = draw.random()
    if kind < 0.4:
        text = json.dumps(spliced(draw, json.loads(text))).encode()
    elif kind < 0.7:
        size = int.from_bytes(tensors[:8], "little")
        header = json.dumps(spliced(draw, json.loads(tensors[8 : 8 + size]))).encode()
        tensors = len(header).to_bytes(8, "little") + header + tensors[8 + size :]
    else:
        return shaken(draw, content)
    return HEADER.pack(MAGIC, PROTOCOL, len(text)) + text + tensors


@pytest.fixture(scope="module")
def attacker(tmp_path_factory, random_split):
    data = random_split(users=6, items=ITEMS, least=4, most=9).data
    made = Attacker(prepared(tmp_path_factory.mktemp("fuzz") / "run", data, channel=()))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(attacker):
    """One that has asked the first device to train."""
    settings = FederationSettings.read(attacker.path)
    transport = SimpleNamespace(users=lambda node: 1)
    events = SimpleNamespace(say=lambda *_, **__: None, add=lambda *_, **__: None)
    return Server(transport, attacker.path, RunFolder(attacker.path).config(), settings, events, b"")


def test_replies_at_the_server(attacker, server):
    order = server.order("train", 1, SimpleNamespace(catalogue=attacker.catalogue.version, wanted=torch.arange(ITEMS)))
    good = attacker.nodes[0].answer(order.pack())
    assert server.fault(0, order, Reply.parse(good), {}) is None
    draw, taken = random.Random(1), 0
    for _ in range(COUNT):
        reply = read(0, Delivery("", mutated(draw, good)))
        wrong = reply if isinstance(reply, Rejection) else server.fault(0, order, reply, {})
        if wrong is not None:
            assert wrong.reason in {*REASONS, "failed", "version"} and len(wrong.detail) <= 250
            continue
        taken += 1  # other values are as good as these: what counts is that they are an update of one user
        values = [*reply.update.rows.values(), *reply.update.layers.values()]
        assert all(bool(np.isfinite(value).all()) for value in values)
        assert (reply.run, reply.round, reply.devices) == (order.run, 1, 1)
        assert {name: value.shape[1:] for name, value in reply.update.rows.items()} == {"items": (4,)}
        assert all(0 <= code < ITEMS for code in [*reply.update.ids.tolist(), *reply.wanted.tolist()])
    assert 0 < taken < COUNT / 5


def test_orders_at_a_device(attacker):
    """Refused, or carried out as one that the policy allows; where it is refused, nothing is told."""
    good = attacker.order(round_=1).pack()
    folder = attacker.folder(1)
    folder.pin(Policy(clear=True, rounds=50))
    draw, done = random.Random(2), 0
    for _ in range(COUNT):
        content = mutated(draw, good)
        reply = Reply.parse(answer(lambda: nullcontext(folder), content, Sums()))
        if reply.failed:
            assert reply.failed in ("device", "error", "version") and not told(reply)
            continue
        done += 1
        assert reply.round <= 50 and reply.devices == 1
        assert all(bool(np.isfinite(value).all()) for value in reply.update.rows.values())
    assert 0 < done < COUNT / 5
    assert folder.catalogue.extends(attacker.catalogue) and all(map(is_text, folder.catalogue.labels))
    assert bool(np.isfinite(folder.seen().rows["items"]).all())
    folder.close()


def test_catalogues(attacker):
    good, draw, read_ = attacker.catalogue, random.Random(3), 0
    plain = json.loads(good.text())
    for _ in range(COUNT):
        text = json.dumps(spliced(draw, plain)).encode() if draw.random() < 0.5 else shaken(draw, good.text().encode())
        try:
            found = Catalogue.parse(text)
        except ValueError:
            continue
        read_ += 1
        assert all(map(is_text, found.labels)) and len(set(found.labels)) == len(found.labels) > 0
        assert (found.version == good.version) == (found.labels == good.labels)
        assert Catalogue.parse(found.text()) == found
    assert 0 < read_ < COUNT


def test_versions(attacker, server):
    """Only versions that the server has had are taken for one."""
    labels = attacker.catalogue.labels
    had = {Catalogue(labels[:count]).version for count in range(len(labels) + 1)}
    good, order, draw = attacker.catalogue.version, server.order("query", 1), random.Random(4)
    assert server.stranger(0, order, Reply("", 1, good, 1), {}) is None
    for _ in range(COUNT):
        version = shaken(draw, good.encode()).decode(errors="replace")
        if draw.random() < 0.3:
            version = str(draw.choice(EXTREME))[:3000] + "-" + good[-12:]
        try:
            content = Reply("", 1, version, 1).pack()
        except UnicodeError:
            continue
        reply = read(0, Delivery("", content))
        wrong = reply if isinstance(reply, Rejection) else server.stranger(0, order, reply, {})
        assert (wrong is None) == (version in had), version
        if isinstance(reply, Reply):
            assert 0 <= known_items(reply.catalogue) < 10**9


@pytest.fixture
def folder(tmp_path, random_split, monkeypatch):
    monkeypatch.setattr("federec.network.vault.PRAGMAS", ("synchronous = OFF",))
    path = tmp_path / "device"
    data = random_split(users=2, items=ITEMS, least=4, most=9).data
    made = DeviceFolder.share(path, KEY, data, range(2))
    made.pin(Policy(clear=True))
    yield made
    made.close()


def test_bytes_of_a_vault(folder):
    """A changed file is damaged or holds what it held; it never holds something else."""
    path, file = folder.path, folder.path / FILE
    whole = everything(folder)
    folder.close()
    with closing(Vault(file, KEY)) as vault:
        vault.scrub()
    good, draw, opened = file.read_bytes(), random.Random(5), 0
    for log in path.glob(f"{FILE}-*"):
        log.unlink()
    for _ in range(COUNT // 2):
        content = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content if draw.random() < 0.9 else content[: draw.randrange(len(content))])
        with contextlib.suppress(UserError), closing(DeviceFolder.open(path, KEY)) as found:
            opened += 1
            assert everything(found) == whole
        for log in path.glob(f"{FILE}-*"):
            log.unlink()
    assert 0 < opened < COUNT // 2


def everything(folder):
    histories = [folder.history(user) for user in range(len(folder.users))]
    plain = [(each.items.tolist(), each.times.tolist(), each.forgets) for each in histories]
    return repr((folder.catalogue.labels, folder.users, folder.slots, plain, folder.policy, folder.identity.secret()))


def test_values_of_a_vault(folder, attacker):
    """A device whose vault was written by another program answers with a failure, or with a reply in order."""
    path, order = folder.path, attacker.order(run="run")
    assert not Reply.parse(answer(lambda: nullcontext(folder), order.pack(), Sums())).failed
    vault, draw, failures = Vault(path / FILE, KEY), random.Random(6), 0
    # Kept answers leave as they are; what a server makes of anything is tested above.
    names = [name for name in vault.names() if not name.startswith("answer")]
    assert len({name.split()[0] for name in names}) == 9
    for _ in range(COUNT // 2):
        name = draw.choice(names)
        good, round_ = vault.need(name), draw.choice((1, 1, 2))
        with vault.change():
            vault.put(name, nonsense(draw, good))
        message = attacker.order("query" if draw.random() < 0.3 else "train", round_, run="run").pack()
        with undone(vault):
            reply = Reply.parse(answer(lambda: closing(DeviceFolder.open(path, KEY)), message, Sums()))
        assert not told(reply) if reply.failed else reply.devices <= 2
        failures += bool(reply.failed)
        with vault.change():
            vault.put(name, good)
    assert failures > COUNT / 10
    vault.close()


def nonsense(draw, value):
    """JSON with other values where it is JSON; otherwise other bytes."""
    with contextlib.suppress(ValueError):
        return json.dumps(spliced(draw, json.loads(value))).encode()
    return shaken(draw, value)


@contextlib.contextmanager
def undone(vault):
    """What is kept within is put back as it was."""
    before = {name: vault.need(name) for name in vault.names()}
    yield
    after = vault.names()
    with vault.change():
        for name in after:
            if name not in before:
                vault.delete(name)
        for name, value in before.items():
            vault.put(name, value)
