"""A round of FedMF's model in pfl, Apple's simulator, for `peers.py`. It needs an environment of its own:

    python -m venv pfl && pfl/bin/pip install 'torch<2.14' pfl
    python benchmarks/peers.py --pfl pfl/bin/python

pfl knows no private parameters, so the user vector is averaged with the rest; work a device is the same: fresh
negatives, one epoch of batches of 256, SGD, a dense model update. The last line said is JSON, with the CPU seconds of a
round.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

ROUNDS = 3


class Factors(nn.Module):
    """A user vector and item rows."""

    def __init__(self, n_items: int, dim: int = 32) -> None:
        super().__init__()
        self.items, self.user = nn.Embedding(n_items, dim), nn.Parameter(torch.randn(dim) * dim**-0.5)

    def forward(self, items: Tensor) -> Tensor:
        return self.items(items) @ self.user

    def loss(self, items: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        return binary_cross_entropy_with_logits(self(items), labels)

    def metrics(self, items: Tensor, labels: Tensor, eval: bool = True) -> dict[str, float]:
        return {}


class Clock(TrainingProcessCallback):
    """CPU seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began = time.process_time()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        now = time.process_time()
        self.seconds.append(now - self.began)
        self.began = now
        return False, Metrics()


def main() -> None:
    torch.set_num_threads(1)
    file = np.load(sys.argv[1])
    histories = np.split(file["items"].astype(np.int64), np.cumsum(file["lengths"])[:-1])
    n_items, random = int(file["n_items"]), np.random.default_rng(0)

    def dataset(user: int) -> Dataset:
        positives = histories[user]
        negatives = random.integers(n_items, size=4 * len(positives))
        items, labels = np.concatenate([positives, negatives]), np.zeros(5 * len(positives), np.float32)
        labels[: len(positives)] = 1
        order = random.permutation(len(items))
        return Dataset([torch.from_numpy(items[order]), torch.from_numpy(labels[order])], user_id=str(user))

    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(len(histories)))))
    network, clock = Factors(n_items), Clock()
    server = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, torch.optim.SGD, server)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS + 1,  # in the first round alone, which does not count
            train_cohort_size=len(histories),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=256),
        NNEvalHyperParams(local_batch_size=256),
        [clock],
    )
    print(json.dumps({"seconds": min(clock.seconds[1:])}))


if __name__ == "__main__":
    main()
