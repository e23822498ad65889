"""Noise does not wear off when a server asks again, and masks cannot be guessed."""

import shutil
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy.stats import chisquare, kstest

from federec.network.device import answer
from federec.network.device_folder import DeviceFolder, shares
from federec.network.hiding import Sums
from federec.network.keys import Key
from federec.network.messages import Reply
from federec.network.parameters import Payload
from federec.network.policy import Policy
from federec.network.secure_sum import _derive, _stream
from federec.stages.registry import parse

NOISE = 0.05
CHANNEL = parse(("clip:norm=0.05", "dense", f"gaussian:scale={NOISE}"))


class Device:
    """A device that sends in the clear under noise. Each order starts a new process, so to speak."""

    def __init__(self, path, key):
        self.path, self.key = path, key

    def ask(self, order):
        return answer(lambda: closing(DeviceFolder.open(self.path, self.key)), order.pack(), Sums())

    def rows(self, order):
        return Reply.parse(self.ask(order)).update.rows["items"]

    def pin(self, **policy):
        with closing(DeviceFolder.open(self.path, self.key)) as folder:
            folder.pin(Policy(**policy))

    def copy(self):
        path = self.path.with_name(f"{self.path.name}-copy-{len(list(self.path.parent.iterdir()))}")
        shutil.copytree(self.path, path)
        return Device(path, self.key)


@pytest.fixture
def noisy(attacker):
    """A device whose policy asks for noise, and an order that it carries out."""
    server = attacker()
    path, key = shares(server.path)[0]
    device = Device(path, Key.file(key))
    device.pin(budget=100.0)
    order = server.order()
    return device, replace(order, config=order.config | {"channel": list(CHANNEL)})


def test_asking_again_brings_the_same_bytes_and_averaging_gains_nothing(noisy):
    device, order = noisy
    exact = unprotected(device, order)
    sent = [device.ask(order) for _ in range(30)]
    assert not Reply.parse(sent[0]).failed
    assert len(set(sent)) == 1
    assert {*(device.copy().ask(order) for _ in range(3))} == {sent[0]}  # copies of the folder resend it, too
    mean = np.stack([Reply.parse(content).update.rows["items"] for content in sent]).mean(0)
    assert float((mean - exact).std()) == pytest.approx(NOISE, rel=0.3)


def unprotected(device, order):
    """What the device would send without noise; found with a copy of its folder whose owner allows it."""
    copy = device.copy()
    copy.pin(clear=True)
    return copy.rows(replace(order, config=order.config | {"channel": list(CHANNEL[:2])}))


def test_a_round_with_other_parameters_is_refused_and_costs_nothing(noisy):
    device, order = noisy
    device.ask(order)
    with closing(DeviceFolder.open(device.path, device.key)) as folder:
        before = folder.ledger.spent
    for factor in (0.9, 1.0001, 2.0):
        rows = {name: value * factor for name, value in order.shared.rows.items()}
        reply = Reply.parse(device.ask(replace(order, shared=Payload(order.shared.ids, rows))))
        assert reply.failed and not reply.update.rows
    with closing(DeviceFolder.open(device.path, device.key)) as folder:
        assert folder.ledger.spent == before
        assert before.rho == pytest.approx(2.0)


def test_noise_ends_with_its_budget(noisy):
    device, order = noisy
    device.pin(budget=13.0)  # one message costs 12.5, two cost 18.9
    assert not Reply.parse(device.ask(order)).failed
    assert Reply.parse(device.ask(replace(order, round=2))).failed


def test_noise_cannot_be_foreseen_from_a_devices_files(noisy):
    """Two copies of a folder that has not answered yet draw noises that have nothing in common."""
    device, order = noisy
    exact = unprotected(device, order)
    one, two = (device.copy().rows(order) - exact for _ in range(2))
    assert float(one.std()) == pytest.approx(NOISE, rel=0.3)
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.5


def test_nothing_of_noise_is_told_besides(noisy):
    device, order = noisy
    reply = Reply.parse(device.ask(order))
    assert reply.sums == {} and len(reply.wanted) == 0
    assert reply.update.ids.tolist() == list(range(30))
    assert bool((reply.update.rows["items"] != 0).all())


@pytest.fixture(scope="module")
def guess():
    """The number below 2^16 that is the key of a stream, if any: what a server can try at once."""

    def search(stream):
        first = stream[:16].tobytes()
        for number in range(1 << 16):
            if Cipher(AES(number.to_bytes(32)), CTR(bytes(16))).encryptor().update(bytes(16)) == first[:16]:
                return number
        return None

    return search


@pytest.mark.thorough
def test_masks_are_not_found_by_trying_short_seeds(attacker, guess):
    server = attacker()
    orders, _ = server.masking(range(6))
    server.ask(0, orders[0])
    party = server.nodes[0].sums.now
    assert (len(party.keys), len(party.seed), len(party.pairs)) == (2 * 32, 32, 2 * 32 * 5)
    own = _stream(_derive(party.seed, party.view, b"self"), 64, 32)
    assert guess(own) is None
    assert guess(_stream((54_321).to_bytes(32), 64, 32)) == 54_321  # as it would be with seeds of 32 bits


def test_seeds_have_their_full_length_and_are_never_those_of_another_sum(attacker):
    server, seen = attacker(), []
    for round_ in (1, 2):
        orders, _ = server.masking(range(6), server.order(round_=round_))
        for node, order in orders.items():
            assert not server.ask(node, order).failed
            party = server.nodes[node].sums.now
            secrets = party.keys + party.seed
            seen += [secrets[start : start + 32] for start in (0, 32, 64)]
    assert {len(secret) for secret in seen} == {32}
    assert len(set(seen)) == len(seen) == 2 * 6 * 3
    assert min(len(set(secret)) for secret in seen) > 16  # no padding


def test_what_a_server_sees_is_uniform(attacker):
    """One device's masked values, differences of two devices, and of one device in two rounds."""
    server, seen = attacker("fedmf", items=2000), {}
    for round_ in (1, 2):
        orders, _ = server.masking(range(6), server.order(round_=round_))
        for node, order in orders.items():
            seen[node, round_] = np.frombuffer(server.ask(node, order).sealed[33:], "<u4")
    views = [*seen.values(), *(seen[0, 1] - seen[node, 1] for node in range(1, 6))]
    views += [seen[node, 1] - seen[node, 2] for node in range(6)]
    assert len(views) == 23 and len(views[0]) > 8000
    for words in views:
        for byte in range(4):
            counts = np.bincount(words.view(np.uint8)[byte::4], minlength=256)
            assert chisquare(counts).pvalue > 1e-7
        assert kstest(words / 2**32, "uniform").pvalue > 1e-7
    total, _ = server.sum(server.order(round_=3), range(6))  # the tests do tell values from masks
    assert chisquare(np.bincount(total.astype("<u4").view(np.uint8), minlength=256)).pvalue < 1e-7
