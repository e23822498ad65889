import torch
from torch import nn, optim

from federec.cohort.draw import Devices, draw
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.fedmf import FedMF


def learn(user, table, items, labels, batch, lr, item_lr):
    """A device in plain torch: one optimiser with two rates steps its vector and its rows together."""
    rows = nn.Embedding.from_pretrained(table.clone(), freeze=False)
    vector = nn.Parameter(user.clone())
    optimiser = optim.SGD([{"params": [vector], "lr": lr}, {"params": rows.parameters(), "lr": item_lr}])
    for item, label in zip(items.split(batch), labels.split(batch), strict=True):
        optimiser.zero_grad()
        nn.BCELoss()(torch.sigmoid(rows(item) @ vector), label).backward()
        optimiser.step()
    return vector.detach(), rows.weight.detach()


def test_rounds_equal_plain_matrix_factorisation_client_by_client(random_split):
    method = FedMF(dim=5, batch=8, lr=0.1, item_lr_factor=0.3, epochs=2)
    devices = Devices.of(random_split(users=9, items=40), False)
    state = State.start(method, 40, 9, seed=1)
    users, table = list(state.private["user"].clone()), state.shared["items"].clone()
    for round_ in (1, 2):
        play(method, state, devices, torch.arange(9), 1, round_)
        tables = []
        for user in range(9):
            samples = draw(devices, torch.tensor([user]), 1, round_, 4)
            own = table
            for epoch in (0, 1):
                order = samples.order(epoch)[0]
                batch = samples.items[0, order], samples.labels[0, order], 8
                users[user], own = learn(users[user], own, *batch, lr=0.1, item_lr=0.1 * 40 * 0.3)
            tables.append(own)
        table = torch.stack(tables).mean(0)
        torch.testing.assert_close(state.shared["items"], table, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.private["user"], torch.stack(users), rtol=1e-4, atol=1e-5)


def test_it_ranks_with_the_servers_rows():
    assert FedMF().view == "global"
    assert set(FedMF().shared()) == {"items"} and set(FedMF().private()) == {"user"}
