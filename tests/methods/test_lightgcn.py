import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn.functional import logsigmoid

from federec.cohort.draw import Devices, draw
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.methods.lightgcn import LightGCN, adjacency, of_neighbours
from federec.runtimes.simulation import trainer


def plain_graph(split):
    """Users, then items; each edge divided by the root of both degrees."""
    n, m = split.data.n_users, split.data.n_items
    a = np.zeros((n + m, n + m))
    for user in range(n):
        for item in split.train[split.ptr[user] : split.ptr[user + 1]]:
            a[user, n + item] = a[n + item, user] = 1
    degree = a.sum(1)
    return torch.tensor(a / np.sqrt(np.outer(degree, degree)).clip(1e-9)).float()


def test_the_graph_of_two_users_by_hand(split_of):
    split = split_of([[0, 1, 3, 3 + 1], [1, 2, 3]], 5)  # trained on: user 0 has 0 and 1, user 1 has 1
    graph = adjacency(split).to_dense()
    expected = torch.zeros(7, 7)
    for user, item, weight in ((0, 0, 2**-0.5), (0, 1, 0.5), (1, 1, 2**-0.5)):
        expected[user, 2 + item] = expected[2 + item, user] = weight
    torch.testing.assert_close(graph, expected)


def test_a_product_with_the_graph_adds_up_neighbours(split_of):
    graph = adjacency(split_of([[0, 1, 3, 4], [1, 2, 3]], 5))  # items 2, 3 and 4 have no neighbours
    rows = torch.randn(7, 20)
    torch.testing.assert_close(of_neighbours(graph, rows), graph.to_dense() @ rows)


def test_rounds_equal_autograd_through_a_dense_graph(random_split):
    split = random_split(users=8, items=20)
    devices, method = Devices.of(split, False), LightGCN(dim=4, layers=2, l2=0.1, lr=0.02, batch=40)
    model, graph = method.start(split, 3), plain_graph(split)
    first = nn.Parameter(torch.cat([model["users"], model["items"]]))
    optimiser = optim.Adam([first], lr=0.02)
    for round_ in (1, 2):
        model = method.learn(model, split, devices, 3, round_)
        for users, items, negatives in method.batches(devices, 3, round_):
            smooth = (first + graph @ first + graph @ graph @ first) / 3
            u, i, j = users, 8 + items, 8 + negatives
            loss = -logsigmoid((smooth[u] * (smooth[i] - smooth[j])).sum(1)).mean()
            loss = loss + 0.05 * sum((first[k] ** 2).sum() for k in (u, i, j)) / len(u)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        smooth = ((first + graph @ first + graph @ graph @ first) / 3).detach()
        some = torch.tensor([5, 2])
        scores = smooth[some] @ smooth[8:].T
        torch.testing.assert_close(method.scores(model, split, some), scores, rtol=1e-3, atol=1e-4)


def test_each_negative_is_paired_with_the_item_it_was_drawn_for(random_split):
    devices = Devices.of(random_split(users=5, items=30), True)
    pairs = [torch.stack(batch, 1) for batch in LightGCN(negatives=3).batches(devices, 1, 4)]
    found = sorted(map(tuple, torch.cat(pairs).tolist()))
    expected = []
    for user in range(5):
        for item, *negatives in draw(devices, torch.tensor([user]), 1, 4, 3).items[0].view(-1, 4).tolist():
            expected += [(user, item, negative) for negative in negatives]
    assert found == sorted(expected)


@pytest.mark.parametrize("settings", [{"layers": 0}, {"l2": -1.0}, {"dim": 0}, {"lr": -0.1}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        LightGCN(**settings)


def test_learning_improves_on_the_start_on_tastes():
    tastes = leave_one_out(generate(users=300, items=500, interactions=12_000))
    worker = trainer(LightGCN(), tastes, protocol("clean"), 0)
    idle = trainer(LightGCN(lr=0.0), tastes, protocol("clean"), 0).play(1)
    for round_ in range(1, 5):
        played = worker.play(round_)
    assert played.test["sampled"]["hr@10"] > idle.test["sampled"]["hr@10"] + 0.1
