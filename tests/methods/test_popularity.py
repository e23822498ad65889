from collections import Counter

import torch

from federec.methods.popularity import Popularity


def test_scores_are_training_counts(random_split):
    split, method = random_split(), Popularity()
    counts = Counter(split.train.tolist())
    scores = method.scores(method.refine({}, split, 1), split, torch.tensor([0, 7]))
    assert scores.tolist() == [[counts[item] for item in range(40)]] * 2
