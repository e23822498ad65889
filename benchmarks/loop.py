"""One client at a time: a round of PFedRec, FedNCF or FedRecGEL in the plain PyTorch of the papers' released code.

For every interaction negatives are sampled from the set of all items that the client never touched, as a tuple made
anew (`random.sample` did so itself before Python 3.11). For every client the model is copied whole, its samples go
through a Dataset and a DataLoader that hands them out one by one, torch's optimisers step dense item tables, the upload
is a copied state dict, and evaluation copies the model again. What released code does beyond that (metrics through
pandas, a second copy of every upload) is left out.
"""

from __future__ import annotations

import random
import time
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset

from federec.data.split import Split
from federec.evaluation.candidates import Candidates

State = dict[str, Tensor]


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A client's items and labels."""

    def __init__(self, items: list[int], labels: list[float]) -> None:
        self.items, self.labels = torch.tensor(items), torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.items[index], self.labels[index]


def loss_of(model: nn.Module, items: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(model(items), labels)


class PFedRec(nn.Module):
    """A private score layer; item rows tuned on the client."""

    private, batch, participation = ("score.", "items."), 256, 1.0  # it ranks with its own rows

    def __init__(self, n_items: int, dim: int = 32) -> None:
        super().__init__()
        self.items, self.score = nn.Embedding(n_items, dim), nn.Linear(dim, 1)

    def forward(self, items: Tensor) -> Tensor:
        return self.score(self.items(items)).squeeze(1)

    def learn(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> list[float]:
        rate, losses = 0.1, []
        score = torch.optim.SGD(self.score.parameters(), lr=rate)
        rows = torch.optim.SGD(self.items.parameters(), lr=rate * self.items.num_embeddings * 80)
        for items, labels in loader:
            for optimiser in (score, rows):
                self.zero_grad()
                loss = loss_of(self, items, labels)
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
        return losses


class FedNCF(nn.Module):
    """A private user vector; a shared MLP over user vector and item row."""

    private, batch, participation = ("user",), 256, 1.0

    def __init__(self, n_items: int, dim: int = 32) -> None:
        super().__init__()
        self.items, self.user = nn.Embedding(n_items, dim), nn.Parameter(torch.empty(dim))
        nn.init.uniform_(self.user, -(dim**-0.5), dim**-0.5)
        layers = [nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(8, 1))

    def forward(self, items: Tensor) -> Tensor:
        rows = self.items(items)
        return self.mlp(torch.cat([self.user.expand(len(rows), -1), rows], 1)).squeeze(1)

    def learn(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> list[float]:
        rates = [(self.mlp.parameters(), 0.5), (self.items.parameters(), 0.5 * 32 * self.items.num_embeddings)]
        groups = [{"params": list(parameters), "lr": rate} for parameters, rate in rates]
        optimiser, losses = torch.optim.SGD([*groups, {"params": [self.user], "lr": 50.0}]), []
        for items, labels in loader:
            optimiser.zero_grad()
            loss = loss_of(self, items, labels)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses


class FedRecGEL(nn.Module):
    """NeuMF; sharpness-aware gradients of the shared part are sent, the private part steps by Adam."""

    private, batch, participation = ("user",), 128, 0.1

    def __init__(self, n_items: int) -> None:
        super().__init__()
        self.items_gmf, self.items_mlp = nn.Embedding(n_items, 32), nn.Embedding(n_items, 128)
        self.user_gmf, self.user_mlp = (nn.Parameter(0.01 * torch.randn(width)) for width in (32, 128))
        layers = [nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()]
        self.mlp, self.out = nn.Sequential(*layers), nn.Linear(64, 1)
        for table in (self.items_gmf, self.items_mlp):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, items: Tensor) -> Tensor:
        rows = self.items_mlp(items)
        top = self.mlp(torch.cat([self.user_mlp.expand(len(rows), -1), rows], 1))
        return self.out(torch.cat([self.user_gmf * self.items_gmf(items), top], 1)).squeeze(1)

    def learn(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> list[float]:
        batches = list(loader)

        def gradient() -> float:
            self.zero_grad()
            loss = torch.stack([loss_of(self, items, labels) for items, labels in batches]).sum()
            loss.backward()
            return loss.item()

        everything = dict(self.named_parameters())
        own = [parameter for name, parameter in everything.items() if name.startswith("user")]
        common = [parameter for name, parameter in everything.items() if not name.startswith("user")]
        total = gradient()
        flat = {id(parameter): parameter.grad.clone() for parameter in everything.values()}
        found = {}
        for group in (common, own):
            norm = torch.stack([flat[id(p)].square().sum() for p in group]).sum().sqrt()
            moves = [0.02 * flat[id(parameter)] / norm for parameter in group]
            with torch.no_grad():
                for parameter, move in zip(group, moves, strict=True):
                    parameter.add_(move)
            gradient()
            found |= {id(parameter): parameter.grad.clone() for parameter in group}
            with torch.no_grad():
                for parameter, move in zip(group, moves, strict=True):
                    parameter.sub_(move)
        adam = torch.optim.Adam(own, lr=0.1)  # its moments, kept from round to round, cost the same when new
        for parameter in own:
            parameter.grad = found[id(parameter)]
        adam.step()
        with torch.no_grad():  # what is sent is the gradient
            for parameter in common:
                parameter.copy_(found[id(parameter)])
        return [total]


@dataclass
class Loop:
    """A federation played one client at a time."""

    model: Any
    split: Split
    candidates: Candidates
    kept: dict[int, State] = field(default_factory=dict)
    """What clients keep to themselves."""

    def round(self, users: list[int], pools: list[set[int]]) -> tuple[float, float]:
        """These users train, one after the other, and the server takes the mean; seconds, and the mean loss."""
        began, losses, uploads = time.process_time(), [], []
        for user, pool in zip(users, pools, strict=True):
            items, labels = [], []
            for positive in self.split.train[self.split.ptr[user] : self.split.ptr[user + 1]].tolist():
                items += [positive, *random.sample(tuple(pool), min(4, len(pool)))]
                labels += [1.0, *[0.0] * min(4, len(pool))]
            model = self.of(user)
            losses += model.learn(DataLoader(Samples(items, labels), model.batch, shuffle=True))
            state = deepcopy(model.state_dict())
            self.kept[user] = {name: value for name, value in state.items() if name.startswith(model.private)}
            uploads.append(state)
        mean = deepcopy(uploads[0])
        for state in uploads[1:]:
            for name in mean:
                mean[name] += state[name]
        return time.process_time() - began, float(np.mean(losses))

    def evaluate(self, users: list[int]) -> float:
        """Each of these users ranks its held-out items of validation and test; seconds."""
        began = time.process_time()
        for user in users:
            model = self.of(user)
            for candidates in (self.candidates.valid[user], self.candidates.test[user]):
                with torch.no_grad():
                    scores = model(candidates.long().clamp(min=0))
                scores.argsort(descending=True).tolist().index(0)
        return time.process_time() - began

    def of(self, user: int) -> Any:
        """The client's own copy of the model."""
        model = deepcopy(self.model)
        model.load_state_dict(self.kept.get(user, {}), strict=False)
        return model

    def pool(self, user: int) -> set[int]:
        """Items that the client draws negatives from, as under `paper`."""
        ptr, closed = self.split.history(True, np.array([user]))
        return set(range(self.split.data.n_items)) - set(closed[ptr[0] : ptr[1]].tolist())


MODELS = {"pfedrec": PFedRec, "fedncf": FedNCF, "fedrecgel": FedRecGEL}
