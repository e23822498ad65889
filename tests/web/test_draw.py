import numpy as np
import pytest
import torch
from tests.web.node import needs_node, node

from federec.cohort.draw import Devices, draw

pytestmark = needs_node
BODY = """return users.map((user) => {
    const key = streams.streamKey(seed, round, user.number);
    const samples = draw.draw(user.positives, draw.distinct(user.closed), items, key, 3);
    return { ...samples, orders: [0, 1, 9].map((epoch) => draw.order(key, epoch, samples.items.length)) };
});"""


@pytest.mark.parametrize("close_held_out", [False, True])
def test_samples_and_their_order_are_those_of_python(split_of, close_held_out):
    random, items = np.random.default_rng(3), 60
    split = split_of([random.permutation(items)[:n] for n in (60, 3, 4, 9, 30, 59)], items)
    devices, users = Devices.of(split, close_held_out), torch.arange(6)
    samples = draw(devices, users, 11, 4, 3)
    orders = [samples.order(epoch) for epoch in (0, 1, 9)]
    closed_ptr, closed = split.history(close_held_out)
    ours = [
        {
            "number": user,
            "positives": devices.train[devices.ptr[user] : devices.ptr[user + 1]],
            "closed": closed[closed_ptr[user] : closed_ptr[user + 1]],
        }
        for user in range(6)
    ]
    for user, got in enumerate(node(["streams", "draw"], BODY, users=ours, items=items, seed=11, round=4)):
        count = int(samples.counts[user])
        assert got["items"] == samples.items[user, :count].tolist()
        assert got["labels"] == samples.labels[user, :count].tolist()
        assert got["orders"] == [order[user, :count].tolist() for order in orders]


def test_repeats_stay_positives():
    got = node(
        ["streams", "draw"],
        "return draw.draw([4, 2, 4], draw.distinct([4, 2, 4]), 6, streams.streamKey(0, 1, 0), 1);",
    )
    assert got["items"][::2] == [4, 2, 4] and not {4, 2} & {*got["items"][1::2]}
    assert got["labels"] == [1, 0] * 3


def test_more_samples_than_can_be_shuffled_are_refused():
    body = "try { draw.order(1n, 0, 2 ** 22 + 1); } catch (error) { return error.message; }"
    assert "more than can be shuffled" in node(["draw"], body)
