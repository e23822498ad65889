"""What is well formed and yet not believed."""

import torch

from federec.network.messages import Reply
from federec.network.parameters import Payload
from federec.network.suspicion import FAR, STRIKES, Norms, Suspects


def reply(size, users=1):
    update = Payload(torch.arange(4), {"items": torch.full((4, 1), size / 2)})
    return Reply("films", 1, "", users, update=update)


def test_what_is_far_beyond_the_usual_norm_is_refused():
    norms = Norms()
    assert norms.far({1: reply(1.0), 2: reply(1.2), 3: reply(900.0)}).keys() == {3}
    assert 1.0 <= norms.usual <= 1.2
    assert norms.far({1: reply(FAR * 0.9)}) == {}
    assert norms.far({7: reply(1e6)}).keys() == {7}


def test_a_hub_may_be_as_large_as_its_users_together():
    norms = Norms()
    assert norms.far({1: reply(1.0), 2: reply(1.0), 3: reply(100.0, users=100)}) == {}


def test_before_anything_is_usual_nothing_is_far():
    assert Norms().far({1: reply(1e9)}) == {} == Norms().far({1: reply(1.0), 2: reply(1e9)})
    assert Norms().far({}) == {}


def test_while_nobody_is_suspected_all_are_one_group():
    assert Suspects(2).groups([3, 1, 2]) == [[3, 1, 2]]


def test_who_spoils_every_sum_is_found_and_the_rest_is_cleared():
    suspects, nodes, rounds = Suspects(4), list(range(12)), 0
    caught: list[int] = []
    while not caught and rounds < 50:
        rounds += 1
        for group in suspects.groups(nodes):
            assert len(group) >= 4
            suspects.saw(group, spoiled=7 in group)
            caught += suspects.caught()
    assert 7 in caught
    assert len(caught) <= 4  # others of its group may be skipped for a while
    assert rounds <= 3 * STRIKES


def test_where_groups_would_be_too_small_some_nodes_are_left_out():
    suspects = Suspects(4)
    suspects.saw(range(6), spoiled=True)
    sizes = {len(group) for _ in range(20) for group in suspects.groups(list(range(6)))}
    assert sizes == {4}
    suspects.saw([0, 1, 2, 3], spoiled=True)
    assert {4, 5} <= set(suspects.groups(list(range(6)))[0])
    suspects.saw([0, 1, 4, 5], spoiled=False)
    assert set(suspects.groups(list(range(6)))[0]) == {0, 1, 4, 5}
