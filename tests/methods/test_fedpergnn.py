from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu

from federec.checks.engines import engines_agree
from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.device import cohorts
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.fedpergnn import FedPerGNN
from federec.plugins.recency import Recency
from federec.runtimes.simulation import trainer

BARE = {"dim": 4, "laplace": 0.0, "pseudo": 0, "neighbours": 2}


def att(w, start, end, x, others):
    """One node's graph attention, written out."""
    nodes = [y @ w for y in (x, *others)]
    logits = torch.stack([leaky_relu(start @ (x @ w) + end @ y, 0.2) for y in nodes])
    return sum(a * y for a, y in zip(logits.softmax(0), nodes, strict=True))


def outer(w, start, end, user, mixed):
    """The same where the others have been through the layer already."""
    nodes = [user @ w, *mixed]
    logits = torch.stack([leaky_relu(start @ nodes[0] + end @ y, 0.2) for y in nodes])
    return sum(a * y for a, y in zip(logits.softmax(0), nodes, strict=True))


def played(method, split, rounds=2):
    devices = Devices.of(split, False)
    state = State.start(method, split.data.n_items, len(devices), 1)
    for round_ in range(1, rounds + 1):
        play(method, state, devices, torch.arange(len(devices)), 1, round_)
    return devices, state


def test_gradients_equal_those_of_a_graph_written_out_node_by_node(random_split):
    method = FedPerGNN(**BARE)
    devices, state = played(method, random_split(users=6, items=25, most=9))
    for cohort in cohorts(method, state, devices, torch.arange(6), 1, 3):
        users = cohort.params["user"].clone()
        method.fit(cohort)
        for c, user in enumerate(cohort.users.tolist()):
            leaf = {n: state.shared[n].clone().requires_grad_() for n in ("gat", "from", "to", "items")}
            layer = leaf["gat"], leaf["from"], leaf["to"]
            history = devices.history(torch.tensor([user]))
            mixed = {}
            for item, peers in zip(history.items[0].tolist(), history.peers(2)[0].tolist(), strict=True):
                vectors = [state.shared["anonymous"][peer] for peer in peers if peer >= 0]
                mixed[item] = att(*layer, leaf["items"][item], vectors)
            n = int(cohort.samples.counts[c])
            logits = []
            for item in cohort.samples.items[c, :n].tolist():
                taste = outer(*layer, users[c], [e for j, e in mixed.items() if j != item])
                logits.append(taste @ (leaf["items"][item] @ leaf["gat"]))
            loss = binary_cross_entropy_with_logits(torch.stack(logits), cohort.samples.labels[c, :n])
            loss.backward()
            mine = cohort.rows.owner == c
            expected = leaf["items"].grad[cohort.rows.ids[mine]]
            torch.testing.assert_close(cohort.outbox["items"][mine], expected, rtol=1e-3, atol=1e-6)
            for name in ("gat", "from", "to"):
                torch.testing.assert_close(cohort.outbox[name][c], leaf[name].grad, rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def devices(split_of):
    """Devices of many lengths: one has every item and draws no negatives, one has nothing to learn from."""
    random = np.random.default_rng(4)
    return Devices.of(split_of([random.permutation(60)[:n] for n in (60, 3, 4, 9, 30, 31, 12, 2, 50)], 60), True)


@pytest.mark.parametrize(
    "settings",
    [BARE, {**BARE, "neighbours": 0}, {**BARE, "dim": 9, "pseudo": 20}, {"dim": 6, "neighbours": 20}],
    ids=["bare", "alone", "pseudo", "noisy"],
)
def test_the_kernel_plays_the_same_rounds(devices, settings):
    """Two rounds: later, a gradient that is 0 but for rounding may be exactly 0, and take no bytes, in one engine."""
    engines_agree(FedPerGNN(**settings), devices, torch.tensor([1, 4, 0, 8, 3]), range(1, 3))


@pytest.mark.slow
def test_the_kernel_lets_new_items_weigh_more(devices):
    engines_agree(FedPerGNN(dim=4, neighbours=2) | Recency(half_life=3), devices, torch.arange(7), range(1, 4))


def test_two_threads_do_what_one_does(devices):
    method, users = FedPerGNN(**BARE), torch.arange(7)
    torch.set_num_threads(2)
    try:
        engines_agree(method, devices, users)
    finally:
        torch.set_num_threads(1)


def test_recency_weighs_a_devices_positives(devices):
    plain, recent = FedPerGNN(**BARE), FedPerGNN(**BARE) | Recency(half_life=1)
    states = [State.start(plain, devices.n_items, len(devices), 1) for _ in range(2)]
    losses = [play(m, s, devices, torch.arange(7), 1, 1).loss for m, s in zip((plain, recent), states, strict=True)]
    assert losses[0] != losses[1]


def test_peers_are_others_who_have_the_item(random_split):
    split = random_split(users=15, items=20)
    devices = Devices.of(split, False)
    have = [set(split.train[split.ptr[u] : split.ptr[u + 1]].tolist()) for u in range(15)]
    history = devices.history(torch.arange(15))
    for most in (1, 3, 20):
        peers = history.peers(most)
        for user in range(15):
            for at, item in enumerate(history.items[user].tolist()):
                found = [peer for peer in peers[user, at].tolist() if peer >= 0]
                others = {u for u in range(15) if u != user and item in have[u]}
                if at >= history.counts[user]:
                    assert not found
                else:
                    assert len(found) == len(set(found)) == min(most, len(others)) and set(found) <= others


def test_what_is_sent_is_clipped_noisy_and_hidden_among_pseudo_items(random_split):
    split = random_split(users=5, items=300, most=6)
    loud = FedPerGNN(dim=4, pseudo=100, neighbours=2)
    devices, state = played(loud, split, 1)
    quiet = loud.model_copy(update={"laplace": 0.0})
    for cohort in cohorts(loud, state, devices, torch.arange(5), 1, 2):
        loud.fit(cohort)
        clear, noisy = quiet.message(cohort, state.shared), loud.message(cohort, state.shared)
        assert torch.equal(clear["anonymous"], cohort.params["user"])
        counts = cohort.rows.counts(len(cohort))
        real = torch.zeros(len(cohort.rows)).index_fill_(0, cohort.rows.slots.flatten(), 1).bool()
        assert (counts > 70).all() and int(real.sum()) < len(real) / 2
        for row in (~real).nonzero().flatten().tolist():  # as one of the device's own
            own = clear["items"][real & (cohort.rows.owner == cohort.rows.owner[row])]
            assert (own == clear["items"][row]).all(1).any()
        noise = noisy["items"] - clear["items"].clamp(-0.1, 0.1)
        assert abs(float(noise.abs().mean()) - 0.2) < 0.02


def test_the_matching_server_keeps_the_vector_each_device_sent_last(random_split):
    split = random_split(users=8, items=30)
    _, state = played(FedPerGNN(**BARE), split)
    assert torch.equal(state.shared["anonymous"], state.private["user"])


def test_ratings_are_learned_where_there_are_some(random_split):

    split = random_split(users=8, items=30)
    method = FedPerGNN(**BARE, target="ratings")
    with pytest.raises(UserError, match="no ratings"):
        method.check(Devices.of(split, False))
    ratings = np.arange(len(split.data)).astype(np.float32)
    devices = Devices.of(leave_one_out(replace(split.data, ratings=ratings)), False)
    method.check(devices)
    for user in range(8):
        history = devices.history(torch.tensor([user]))
        for item, rating in zip(history.items[0].tolist(), history.ratings[0].tolist(), strict=True):
            at = (split.data.users == user) & (split.data.items == item)
            assert ratings[at] == rating
    state = State.start(method, 30, 8, 1)
    losses = [play(method, state, devices, torch.arange(8), 1, round_).loss for round_ in range(1, 30)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "settings", [{"clip": 0.0}, {"laplace": -0.1}, {"pseudo": -1}, {"neighbours": -1}, {"target": "clicks"}]
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedPerGNN(**settings)


def test_learning_improves_on_the_start_on_tastes():
    tastes = leave_one_out(generate(users=300, items=500, interactions=12_000))
    bare = {"laplace": 0.0, "pseudo": 0, "dim": 16, "neighbours": 2}
    idle = trainer(FedPerGNN(**bare, lr=0.0, server_lr=0.0), tastes, protocol("clean"), 0).play(1)
    worker = trainer(FedPerGNN(**bare), tastes, protocol("clean"), 0)
    played = [worker.play(round_) for round_ in range(1, 9)][-1]
    assert played.test["sampled"]["hr@10"] > idle.test["sampled"]["hr@10"] + 0.15
