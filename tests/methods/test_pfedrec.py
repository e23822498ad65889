from itertools import pairwise

import pytest
import torch
from torch import nn, optim

from federec.cohort.draw import Devices, draw
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.pfedrec import PFedRec


class Client:
    """A device as the published algorithm has it, in plain torch: a score network kept for good, a table a round."""

    def __init__(self, state, widths):
        layers = []
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            linear = nn.Linear(inputs, outputs)
            linear.weight.data = state.private[f"score.{i}.weight"][0].T.clone()
            linear.bias.data = state.private[f"score.{i}.bias"][0].clone()
            layers += [linear, nn.ReLU()]
        self.score = nn.Sequential(*layers[:-1])

    def learn(self, table, items, labels, batch, lr, item_lr):
        """The tuned table after one pass over the samples."""
        rows = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        optimisers = optim.SGD(self.score.parameters(), lr), optim.SGD(rows.parameters(), item_lr)
        for item, label in zip(items.split(batch), labels.split(batch), strict=True):
            for optimiser in optimisers:  # the rows see the new score
                self.score.zero_grad()
                rows.zero_grad()
                rating = torch.sigmoid(self.score(rows(item))).squeeze(1)
                nn.BCELoss()(rating, label).backward()
                optimiser.step()
        return rows.weight.detach()


@pytest.mark.parametrize("hidden", [(), (6, 3)])
def test_rounds_equal_the_published_algorithm_client_by_client(random_split, hidden):
    method = PFedRec(dim=5, hidden=hidden, batch=8, lr=0.1, item_lr_factor=0.3)
    devices = Devices.of(random_split(users=9, items=40), False)
    state = State.start(method, 40, 9, seed=1)
    clients = [Client(state, (5, *hidden, 1)) for _ in range(9)]
    table = state.shared["items"].clone()
    tuned = {}

    def observe(cohort):
        for row, (c, item) in enumerate(zip(cohort.rows.owner.tolist(), cohort.rows.ids.tolist(), strict=True)):
            tuned[int(cohort.users[c]), item] = cohort.tables["items"][row].clone()

    for round_ in (1, 2):
        tuned.clear()
        play(method, state, devices, torch.arange(9), 1, round_, observe)
        tables = []
        for user, client in enumerate(clients):
            samples = draw(devices, torch.tensor([user]), 1, round_, 4)
            order = samples.order(0)[0]
            items, labels = samples.items[0, order], samples.labels[0, order]
            tables.append(client.learn(table, items, labels, 8, lr=0.1, item_lr=0.1 * 40 * 0.3))
        for user, own in enumerate(tables):
            for item in range(40):
                mine = tuned.get((user, item), table[item])
                torch.testing.assert_close(mine, own[item], rtol=1e-4, atol=1e-5)
        table = torch.stack(tables).mean(0)
        torch.testing.assert_close(state.shared["items"], table, rtol=1e-4, atol=1e-5)
    for user, client in enumerate(clients):
        for i, layer in enumerate(layer for layer in client.score if isinstance(layer, nn.Linear)):
            got = state.private[f"score.{i}.weight"][user], state.private[f"score.{i}.bias"][user]
            torch.testing.assert_close(got[0], layer.weight.detach().T, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(got[1], layer.bias.detach(), rtol=1e-4, atol=1e-5)


def test_a_round_worked_by_hand(split_of):
    """One device, one batch: positive 0, negative 3 (the only open item); rows 2 and -1, w = 1/2, b = 0.

    ratings   sigma(1) = 0.731059            sigma(-1/2) = 0.377541
    errors    (0.731059 - 1) / 2 = -0.134471           0.377541 / 2 = 0.188770
    score     w = 0.5 - 0.1 (-0.134471 * 2 - 0.188770) = 0.545771      b = -0.1 (0.188770 - 0.134471) = -0.005430
    ratings   sigma(1.086112) = 0.747649     sigma(-0.551201) = 0.365586
    errors    -0.126176                      0.182793
    rows      2 + 0.126176 w = 2.068863      -1 - 0.182793 w = -1.099763       (step 0.1 * 4 items * 2.5 = 1)
    """
    method = PFedRec(dim=1, negatives=1, lr=0.1, item_lr_factor=2.5)
    devices = Devices.of(split_of([[0, 1, 2]], 4), close_held_out=True)
    rows = torch.tensor([[2.0], [9.0], [9.0], [-1.0]])
    private = {"score.0.weight": torch.tensor([[[0.5]]]), "score.0.bias": torch.tensor([[0.0]])}
    state = State({"items": rows}, private)
    report = play(method, state, devices, torch.tensor([0]), 0, 1)
    assert state.private["score.0.weight"].item() == pytest.approx(0.545771, abs=1e-6)
    assert state.private["score.0.bias"].item() == pytest.approx(-0.005430, abs=1e-6)
    assert state.shared["items"].squeeze().tolist() == pytest.approx([2.068863, 9, 9, -1.099763], abs=1e-6)
    before = (-torch.tensor([0.731059, 1 - 0.377541]).log()).mean()
    after = (-torch.tensor([0.747649, 1 - 0.365586]).log()).mean()
    assert report.loss == pytest.approx(float(before + after) / 2, abs=1e-5)


def test_defaults_are_the_papers():
    method = PFedRec()
    assert (method.dim, method.hidden, method.lr, method.item_lr_factor) == (32, (), 0.1, 80.0)
    assert (method.batch, method.negatives, method.epochs, method.view) == (256, 4, 1, "own")
