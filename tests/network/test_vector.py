"""A reply as a vector, and the reply that a sum of vectors stands for."""

import numpy as np
import pytest
import torch

from federec.cohort.layers import Param
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.network.vector import flat, length, spoiled, unflat
from federec.stages.secure_sum import STEPS

SENDS = {"items": Param((4,), rows=True), "net": Param((2, 3))}
ORDER = Order("train", "films", 3, {}, [9])
MOST = 8.0
STEP = 2 * MOST / STEPS


def reply(seed, users=1, **values):
    draw = torch.Generator().manual_seed(seed)
    update = Payload(
        torch.arange(9), {"items": torch.randn(9, 4, generator=draw)}, {"net": torch.randn(2, 3, generator=draw)}
    )
    sums = {"loss": (40.5 * seed, 100), "valid sampled hr@10": (1.0, users), "interactions": (20.0, users)}
    return Reply("films", 3, "", users, sums, update=update, **values)


def test_the_sum_of_vectors_stands_for_the_sum_of_replies():
    replies = [reply(1), reply(2, users=3), reply(3)]
    total = sum(flat(each, SENDS, 9, MOST) for each in replies)
    assert total.dtype == np.int64 and len(total) == length(SENDS, 9)
    found = unflat(total, ORDER, SENDS, 9, MOST)
    assert (found.run, found.round, found.devices) == ("films", 3, 5)
    for name, where in (("items", "rows"), ("net", "layers")):
        plain = sum(getattr(each.update, where)[name] for each in replies)
        assert np.abs(getattr(found.update, where)[name] - plain).max() <= len(replies) * STEP
    assert found.sums["loss"] == (pytest.approx(40.5 * 6, abs=0.01), 300)
    assert found.sums["valid sampled hr@10"] == (pytest.approx(3, abs=1e-4), 5)
    assert found.sums["interactions"] == (pytest.approx(60, abs=1e-3), 5)
    assert not spoiled(total, 3, 5)


def test_what_nobody_says_anything_of_is_not_there():
    silent = Reply("films", 3, "", 1, update=Payload(torch.zeros(0, dtype=torch.int64), {}, {"net": torch.ones(2, 3)}))
    found = unflat(flat(silent, SENDS, 9, MOST), ORDER, SENDS, 9, MOST)
    assert found.update.rows == {} and len(found.update.ids) == 0
    assert np.allclose(found.update.layers["net"], 1)
    assert found.sums == {}


def test_values_are_cut_off_for_each_user():
    big = reply(1, users=2)
    big.update.rows["items"][0, 0] = 1e6
    found = unflat(flat(big, SENDS, 9, MOST), ORDER, SENDS, 9, MOST)
    assert float(found.update.rows["items"][0, 0]) == 2 * MOST


def test_a_sum_that_cannot_be_one_of_honest_vectors_is_recognised():
    total = flat(reply(1), SENDS, 9, MOST)
    assert not spoiled(total, 1, 1)
    assert spoiled(total, 1, 0)
    for place, value in ((0, 0), (0, 10**12), (20, STEPS), (-1, -STEPS)):
        wrong = total.copy()
        wrong[place] = value
        assert spoiled(wrong, 1, 1)
    garbage = np.random.default_rng(0).integers(-(2**31), 2**31, len(total))
    assert spoiled(garbage, 5, 5)
