"""The guard takes in what was asked for, names what is wrong with anything else, and never falls over."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federec.network.guard import REASONS, Expected, Rejection, check

EXPECTED = Expected(
    run="films-7",
    round=3,
    catalogue="9-abc",
    items=9,
    rows={"items": (4,)},
    layers={"net": (4, 2), "bias": ()},
    ids=np.array([1, 4, 8]),
    devices=5,
    max_norm=10.0,
)
METADATA = {"run": "films-7", "round": 3, "catalogue": "9-abc", "devices": 2}
METADATA |= {"sums": {"loss": (81.5, 40), "valid sampled hr@10": (1.0, 2), "test full hr@10": (0.0, 0)}}


def good():
    return {
        "ids": np.array([1, 4, 8]),
        "rows:items": np.full((3, 4), 0.5, np.float32),
        "layers:net": np.ones((4, 2), np.float32),
        "layers:bias": np.array(-1.0, np.float32),
    }


def reason(metadata=METADATA, tensors=None, expected=EXPECTED, answered=(), sender=7):
    rejection = check(sender, metadata, good() if tensors is None else tensors, expected, answered)
    return rejection and rejection.reason


def test_what_was_asked_for_is_taken_in():
    assert reason() is None
    assert reason(tensors=good() | {"rows:more": np.zeros((3, 4), np.float32)}) == "malformed"
    assert reason(expected=dataclasses.replace(EXPECTED, ids=None, max_norm=None)) is None
    layers_only = dataclasses.replace(EXPECTED, rows={}, ids=None)
    assert reason(tensors={k: v for k, v in good().items() if k.startswith("layers")}, expected=layers_only) is None


CASES = {
    "an old round": ("replay", {"metadata": METADATA | {"round": 2}}),
    "another run": ("replay", {"metadata": METADATA | {"run": "films-6"}}),
    "a second answer": ("duplicate", {"answered": {7}}),
    "an old catalogue": ("catalogue", {"metadata": METADATA | {"catalogue": "8-abc"}}),
    "too many devices": ("malformed", {"metadata": METADATA | {"devices": 6}}),
    "no devices": ("malformed", {"metadata": METADATA | {"devices": 0}}),
    "devices that are no number": ("malformed", {"metadata": METADATA | {"devices": True}}),
    "no round": ("malformed", {"metadata": {k: v for k, v in METADATA.items() if k != "round"}}),
    "a loss that is no number": ("non-finite", {"metadata": METADATA | {"sums": {"loss": (math.nan, 3)}}}),
    "a metric beyond all users": ("malformed", {"metadata": METADATA | {"sums": {"valid full hr@10": (2.5, 2)}}}),
    "a metric below zero": ("malformed", {"metadata": METADATA | {"sums": {"valid full hr@10": (-0.1, 2)}}}),
    "a metric of users it has not": ("malformed", {"metadata": METADATA | {"sums": {"valid full hr@10": (3.0, 3)}}}),
    "no pair": ("malformed", {"metadata": METADATA | {"sums": {"loss": 1.0}}}),
    "no metadata": ("malformed", {"metadata": None}),
    "no layer": ("malformed", {"tensors": {k: v for k, v in good().items() if k != "layers:net"}}),
    "a list": ("malformed", {"tensors": good() | {"layers:net": [[1.0] * 2] * 4}}),
    "doubles": ("dtype", {"tensors": good() | {"layers:net": np.ones((4, 2))}}),
    "short codes": ("dtype", {"tensors": good() | {"ids": np.array([1, 4, 8], np.int32)}}),
    "a wide row": ("shape", {"tensors": good() | {"rows:items": np.ones((3, 5), np.float32)}}),
    "a row too many": ("shape", {"tensors": good() | {"rows:items": np.ones((4, 4), np.float32)}}),
    "other rows": ("shape", {"tensors": good() | {"ids": np.array([1, 4, 7])}}),
    "a table of codes": ("shape", {"tensors": good() | {"ids": np.ones((3, 1), np.int64)}}),
    "NaN": ("non-finite", {"tensors": good() | {"layers:bias": np.array(math.nan, np.float32)}}),
    "infinity": ("non-finite", {"tensors": good() | {"rows:items": np.full((3, 4), -math.inf, np.float32)}}),
    "a huge norm": ("norm", {"tensors": good() | {"layers:bias": np.array(20.1, np.float32)}}),
    "the largest of floats": ("norm", {"tensors": good() | {"rows:items": np.full((3, 4), 3e38, np.float32)}}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused(case):
    expected, given_ = CASES[case]
    assert reason(**given_) == expected


def test_every_reason_occurs():
    assert {expected for expected, _ in CASES.values()} == {*REASONS}


@pytest.mark.parametrize("ids", [[4, 1, 8], [1, 4, 9], [-1, 4, 8], [1, 4, 4]])
def test_rows_are_items_once_each(ids):
    anything = dataclasses.replace(EXPECTED, ids=None)
    assert reason(tensors=good() | {"ids": np.array(ids)}, expected=anything) == "shape"


def test_the_norm_is_that_of_one_device():
    large = good() | {"layers:bias": np.array(15.0, np.float32)}
    assert reason(tensors=large) is None  # two devices, 10 each
    assert reason(tensors=large, metadata=METADATA | {"devices": 1, "sums": {}}) == "norm"


class Hostile:
    """Fails whatever is asked of it."""

    def __getattribute__(self, name):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.builds(Hostile)
    | st.builds(
        lambda shape, dtype: np.zeros(shape, dtype),
        st.lists(st.integers(0, 4), max_size=3),
        st.sampled_from([np.float32, np.int64, np.bool_, np.float16, np.complex64]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(junk, junk, junk)
def test_junk_is_refused_and_never_fatal(sender, metadata, tensors):
    rejection = check(sender, metadata, tensors, EXPECTED, {7})
    assert isinstance(rejection, Rejection)
    assert rejection.reason in REASONS


@given(st.sampled_from([*METADATA]), junk)
def test_one_odd_field_is_never_fatal(name, value):
    rejection = check(7, METADATA | {name: value}, good(), EXPECTED, set())
    assert rejection is None or rejection.reason in REASONS


@given(st.sampled_from([*good()]), junk)
def test_one_odd_tensor_is_never_fatal(name, value):
    rejection = check(7, METADATA, good() | {name: value}, EXPECTED, set())
    assert rejection is not None or isinstance(value, np.ndarray)


@given(st.lists(st.floats(width=32), min_size=12, max_size=12))
def test_what_is_taken_in_is_finite_and_within_the_norm(values):
    rows = np.array(values, np.float32).reshape(3, 4)
    if reason(tensors=good() | {"rows:items": rows}) is None:
        assert np.isfinite(rows).all()
        assert np.linalg.norm(rows.astype(np.float64)) <= 20.0
