"""Graphs against torch, for each way to score."""

import pytest
import torch

from federec.errors import UserError
from federec.export.model import Given
from federec.export.onnx import TOLERANCE, Agreement, Score, compared, example, graph
from federec.federation.state import State

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install federec[export]")
onnx = pytest.importorskip("onnx", reason="pip install federec[export]")
ITEMS = 30


def made(method, precision, seed=0):
    """A score function with random parameters, and its file."""
    shared, generator = State.start(method, ITEMS, 1, seed).shared, torch.Generator().manual_seed(seed)
    for name, value in shared.items():
        value += 0.3 * torch.randn(value.shape, generator=generator)
        if name in ("half_lives", "recency", "blend"):
            value.abs_().add_(0.5)
    given = Given.of(method, shared, precision)
    score = Score(method, given.restored())
    return score, graph(score, given, ITEMS), given


@pytest.mark.parametrize(
    "name",
    [
        *("pfedrec", "fedrap", "fedncf", "everything", "fedals", "fedease", "fednext", "fednext-projected"),
        pytest.param("fedsasrec", marks=pytest.mark.thorough),
        pytest.param("fedrecgel", marks=pytest.mark.thorough),
    ],
)
def test_onnxruntime_agrees_with_torch(small, name):
    score, file, _ = made(small(name), "int8")
    found = compared(file, score, ITEMS)
    assert found.fine and found.largest > 0.01, found
    onnx.checker.check_model(onnx.load_from_string(file), full_check=True)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_other_precisions_agree_too(small, precision):
    score, file, given = made(small("pfedrec"), precision)
    assert compared(file, score, ITEMS).fine
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load_from_string(file).graph.initializer}
    expected = onnx.TensorProto.FLOAT if precision == "float32" else onnx.TensorProto.FLOAT16
    assert expected in kinds.values() and given.arrays()["items"].dtype == precision


def test_a_wrong_graph_is_noticed(small):
    _, file, _ = made(small("pfedrec"), "float32")
    other, *_ = made(small("pfedrec"), "float32", seed=1)
    assert not compared(file, other, ITEMS).fine
    assert Agreement(TOLERANCE * 50, 60).fine and not Agreement(TOLERANCE * 2, 0.5).fine


def test_inputs_have_any_size(small):
    score, file, _ = made(small("fedrap"), "int8")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    shapes = {each.name: each.shape for each in session.get_inputs()}
    assert shapes["items"] == ["items"] and shapes["own"] == ["users", "items", 4]
    inputs = example(score, ITEMS, users=4, seed=1, asked=1)
    (scores,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    assert scores.shape == (4, 1)


@pytest.mark.parametrize(("name", "why"), [("metamf", "each user"), ("local-only", "shares nothing")])
def test_what_cannot_be_exported_is_one_line(small, name, why):
    method = small(name)
    with pytest.raises(UserError, match=why):
        Given.of(method, State.start(method, ITEMS, 2, 0).shared, "float32")
