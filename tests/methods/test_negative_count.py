from collections import Counter

import pytest
import torch

from federec.cohort.draw import Devices, draw
from federec.evaluation.protocols import protocol
from federec.federation.round import play
from federec.federation.scoring import score_global
from federec.federation.state import State
from federec.methods.negative_count import NegativeCount
from federec.runtimes.simulation import trainer


@pytest.mark.parametrize("close", [False, True])
def test_scores_count_the_draws(random_split, close):
    split, method = random_split(users=7, items=25), NegativeCount()
    devices, users = Devices.of(split, close), torch.arange(7)
    state, counts = State.start(method, 25, 7, seed=0), Counter()
    for round_ in (1, 2, 3):
        play(method, state, devices, users, 0, round_)
        for user in range(7):
            samples = draw(devices, users[user : user + 1], 0, round_, 4)
            negatives = samples.items[0][samples.labels[0] == 0].tolist()
            counts.update((user, item) for item in negatives)
    scores = score_global(method, state, users, torch.arange(25).expand(7, -1))
    assert scores.tolist() == [[-counts[user, item] for item in range(25)] for user in range(7)]
    held_out = torch.from_numpy(split.test.items).long()
    if close:
        assert scores[users, held_out].tolist() == [0] * 7
    else:
        assert (scores[users, held_out] < 0).any()


def test_it_exposes_the_leak_of_paper(random_split):
    """Nothing can be learned from these random histories, yet under `paper` the held-out item rises to the top."""
    split, rates = random_split(users=80, items=130, least=8, most=25), {}
    for name in ("paper", "clean"):
        worker = trainer(NegativeCount(), split, protocol(name), 0)
        played = [worker.play(round_) for round_ in range(1, 31)]
        rates[name] = played[-1].test["sampled"]["hr@10"]
    assert rates["paper"] > 0.98
    assert rates["clean"] < 0.2
