import torch
from torch import nn, optim

from federec.cohort.draw import Devices, draw
from federec.evaluation.protocols import protocol
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.local_only import LocalOnly
from federec.runtimes.simulation import trainer


def test_nothing_is_shared_or_sent(random_split):
    method = LocalOnly(dim=4)
    assert method.shared() == {}
    worker = trainer(method, random_split(), protocol("clean"), 0)
    played = worker.play(1)
    assert (played.up_bytes, played.down_bytes) == (0, 0)
    assert worker.state.shared == {}


def test_a_device_learns_alone_and_keeps_its_rows(random_split):
    method = LocalOnly(dim=3, batch=8, lr=0.1, item_lr_factor=0.3)
    devices = Devices.of(random_split(users=6, items=30), True)
    state = State.start(method, 30, 6, seed=2)
    start = state.copy()
    for round_ in (1, 2):
        play(method, state, devices, torch.arange(6), 2, round_)
    for user in range(6):
        rows = nn.Embedding.from_pretrained(start.stores["items"].start.clone(), freeze=False)
        score = nn.Linear(3, 1)
        score.weight.data = start.private["score.0.weight"][user].T.clone()
        score.bias.data = start.private["score.0.bias"][user].clone()
        for round_ in (1, 2):
            samples = draw(devices, torch.tensor([user]), 2, round_, 4)
            order = samples.order(0)[0].split(8)
            for batch in order:
                for optimiser in (optim.SGD(score.parameters(), 0.1), optim.SGD(rows.parameters(), 0.1 * 30 * 0.3)):
                    score.zero_grad()
                    rows.zero_grad()
                    rating = torch.sigmoid(score(rows(samples.items[0, batch]))).squeeze(1)
                    nn.BCELoss()(rating, samples.labels[0, batch]).backward()
                    optimiser.step()
        own = state.stores["items"].take(torch.tensor([user]), torch.zeros(30, dtype=torch.int64), torch.arange(30))
        torch.testing.assert_close(own, rows.weight.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.private["score.0.weight"][user].T, score.weight.detach(), rtol=1e-4, atol=1e-5)
