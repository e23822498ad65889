"""Two sums that differ by one device would tell what that device sent. Devices answer once, so there are none."""

from dataclasses import replace

import numpy as np
import pytest

from federec.network.ledger import Ledger
from federec.network.parameters import Payload
from federec.network.vector import unflat

EVERYONE, WITHOUT_ONE, FEWER = range(12), range(1, 12), range(2, 12)
KINDS = {"train": {"kind": "train"}, "evaluate": {"kind": "evaluate"}, "full": {"kind": "evaluate", "full": True}}


@pytest.fixture(params=KINDS)
def asked(request, attacker):
    """A server, and an order that all its devices have answered."""
    server = attacker("fedmf", nodes=12)
    order = server.order(**KINDS[request.param])
    assert sorted(server.sum(order, EVERYONE)[1]) == [*EVERYONE]
    return server, order


def moved(order):
    shared = order.shared
    return replace(order, shared=Payload(shared.ids, {name: rows + 0.01 for name, rows in shared.rows.items()}))


def test_a_round_is_not_repeated_for_a_smaller_group(asked):
    server, order = asked
    for group in (WITHOUT_ONE, FEWER, EVERYONE):
        assert server.sum(order, group) is None
    assert (server.sum(replace(order, round=2), WITHOUT_ONE) is None) == order.full  # that is told once in a run


def test_a_round_is_not_repeated_with_other_parameters(asked):
    server, order = asked
    for group in (EVERYONE, WITHOUT_ONE):
        assert server.sum(moved(order), group) is None
        assert server.sum(replace(order, sizes=[29, 30]), group) is None
        assert server.sum(replace(order, config=order.config | {"seed": 7}), group) is None


def test_a_device_does_not_go_back_to_an_older_round_or_run(asked):
    server, order = asked
    server.pin(runs=2)
    assert order.full or server.sum(replace(order, round=3), EVERYONE) is not None
    for round_ in (1, 2, 3):
        assert server.sum(replace(order, round=round_), WITHOUT_ONE) is None
    assert server.sum(replace(order, run="another", round=1), EVERYONE) is not None
    for round_ in (1, 3, 4, 99):
        assert server.sum(replace(order, round=round_), WITHOUT_ONE) is None


def test_the_difference_would_be_one_devices_update_if_devices_answered_twice(attacker, monkeypatch):
    """What the tests above protect from."""
    server = attacker("fedmf", nodes=12)
    whole, _ = server.sum(server.order(), EVERYONE)
    monkeypatch.setattr(Ledger, "answered", lambda *order: None)
    rest, _ = server.sum(server.order(), WITHOUT_ONE)
    rows = (whole - rest)[-30 * 4 :].reshape(30, 4)
    changed = set(np.flatnonzero(np.abs(rows).sum(1)))
    assert set(server.folder(0).split(0).train) <= changed < set(range(30))


def test_two_runs_do_not_differ_by_one_device(attacker):
    server = attacker("fedmf", nodes=12)
    assert server.sum(server.order(run="one"), EVERYONE) is not None
    assert server.sum(server.order(run="two"), WITHOUT_ONE) is None
    server.pin(runs=2)
    assert server.sum(server.order(run="two"), WITHOUT_ONE) is not None  # what the policy protects from


def test_the_two_evaluations_of_a_round_tell_different_things(attacker):
    """Sums over different devices of the same figures would tell those of the devices in one of them only."""
    server = attacker("fedmf", nodes=12)
    told = []
    for order in (server.order("evaluate"), server.order("evaluate", full=True)):
        total, _ = server.sum(order, EVERYONE)
        told.append(set(unflat(total, order, {}, 30, 2048.0).sums))
    assert told[0] and told[1] and not told[0] & told[1]
    assert server.sum(server.order("evaluate", round_=2, full=True), WITHOUT_ONE) is None
