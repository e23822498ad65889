"""The main direction tells items from negatives, and their numbers tell its sign."""

import numpy as np
import pytest

from federec.auditing.reading import ATTACKS, Known, Seen, along, expected_negatives, likely_items

KNOWN = Known(400, 4, np.ones(400, np.int64), 30)


def message(items, seed, known=KNOWN):
    """Of a user with a linear score: rows (y - r) w, and who has what."""
    generator = np.random.default_rng(seed)
    own = generator.permutation(known.n_items)[:items]
    others = np.setdiff1d(np.arange(known.n_items), own)
    weight = np.zeros(known.n_items)
    weight[own] = generator.uniform(0.1, 0.9, items)
    drawn, counts = np.unique(generator.choice(others, known.negatives * items), return_counts=True)
    weight[drawn] = -counts * generator.uniform(0.1, 0.9, len(drawn))
    has = np.zeros(known.n_items, bool)
    has[own] = True
    ids = np.flatnonzero(weight)
    return Seen(ids, weight[ids, None] * generator.standard_normal(8)), has


@pytest.mark.parametrize("items", [3, 30, 150, 250])
def test_the_direction_names_a_users_items(items):
    for seed in range(5):
        seen, has = message(items, seed)
        said = ATTACKS["direction"](seen, KNOWN)
        assert said.named[has].all() and not said.named[~has].any()
        assert said.score[has].min() > said.score[~has].max()


def test_rows_that_change_hold_all_items_and_the_negatives():
    seen, has = message(30, 0)
    said = ATTACKS["rows"](seen, KNOWN)
    assert said.named[has].all() and said.named.sum() == len(seen.ids) > 100


def test_how_many_items_a_user_has_follows_from_the_rows_that_change():
    for items in (5, 30, 100):
        changed = len(message(items, 1)[0].ids)
        assert likely_items(changed, KNOWN) == pytest.approx(items, rel=0.15, abs=1)
    assert float(expected_negatives(0, KNOWN)) == 0


def test_a_method_without_negatives_sends_only_what_the_user_has():
    known = Known(400, 0, np.ones(400, np.int64), 30)
    seen, has = message(20, 0)
    own = has[seen.ids]
    said = ATTACKS["direction"](Seen(seen.ids[own], seen.rows[own]), known)
    assert (said.named == has).all()


def test_of_a_sum_as_many_items_are_named_as_users_have():
    table = np.random.default_rng(0).standard_normal((400, 8))
    for name in ("size", "sum", "direction"):
        assert ATTACKS[name](Seen(np.arange(400), table, single=False), KNOWN).named.sum() == 30


def test_the_main_direction_is_the_same_of_wide_and_tall_rows():
    rows = np.random.default_rng(0).standard_normal((12, 5)) * [5, 1, 1, 1, 1]
    wide = np.concatenate([rows, np.zeros((12, 20))], 1)
    assert np.abs(along(rows)) == pytest.approx(np.abs(along(wide)))
