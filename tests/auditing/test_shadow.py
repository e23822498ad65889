"""Invented users look like real ones, and a regression on them finds what gives items away."""

import numpy as np
import torch

from federec.auditing.reading import Known
from federec.auditing.shadow import features, fitted, invented, probability

KNOWN = Known(50, 4, np.arange(50), 10)


def test_invented_users_have_popular_items_and_random_streams_of_their_own(random_split):
    split = random_split(users=20, items=50)
    devices, has = invented(split, KNOWN, 200, 0)
    assert len(devices) == 200 and has.shape == (200, 50)
    assert 5 < has.sum(1).mean() < 15
    assert np.corrcoef(has.sum(0), KNOWN.popularity)[0, 1] > 0.8
    assert int(devices.numbered(torch.arange(200)).min()) > split.data.n_users


def test_the_regression_learns_which_score_counts():
    generator = np.random.default_rng(0)
    has = generator.random((40, 50)) < 0.2
    telling = has + 0.3 * generator.standard_normal(has.shape).astype(np.float32)
    noise = generator.standard_normal(has.shape).astype(np.float32)
    x = features([telling, noise], KNOWN)
    weights = fitted(x[:20], has[:20])
    assert abs(weights[0]) > 5 * abs(weights[1])
    assert ((probability(x[20:], weights) > 0.5) == has[20:]).mean() > 0.9


def test_without_anything_to_learn_it_says_what_is_usual():
    has = np.random.default_rng(0).random((40, 50)) < 0.2
    x = features([np.zeros(has.shape, np.float32)], KNOWN)
    assert np.abs(probability(x, fitted(x, has)).mean() - 0.2) < 0.02
