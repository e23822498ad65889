"""A method's score function as an ONNX graph, which runs without federec and without torch.

    items [items]                codes to score
    NAME [users, ...]            each private parameter; private item tables as rows of the items asked for
    history [length]             for methods that read it: codes of one user, oldest first, at least one
    -> scores [users, items]     higher is better; scores of different users are not on one scale

A user's own graph has the private part inside, and only asks for items and, where it reads it, the history.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from federec.cohort.draw import History
from federec.cohort.layers import SERVER, Params, dot
from federec.errors import UserError, needs
from federec.export.model import Given, Personal
from federec.federation.newcomers import devices_of
from federec.mathematics.transformer import encode_last
from federec.methods.base import DeviceMethod
from federec.methods.fedsasrec import FedSASRec

_TABLE = "table:"
_OPSET = 17
TOLERANCE = 1e-5
"""How far torch and onnxruntime may be apart, as a fraction of the largest score, if that is above 1."""


class Score(nn.Module):
    """A method's score function with its shared parameters, and one user's private ones where they are given."""

    def __init__(self, method: DeviceMethod, shared: Params, own: Personal | None = None) -> None:
        super().__init__()
        self.method, self.own = method, own
        self.names = {"shared": list(method.shared()), "private": [], "rows": []}
        for name, param in method.private().items():
            self.names["rows" if param.rows else "private"].append(name)
        for name, value in shared.items():
            self.register_buffer(_safe(name), value)
        if own is not None:
            for name, value in own.tuned.items():
                self.register_buffer(_safe(name + SERVER), value)

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        """Names of the inputs, and those of their dimensions that may have any size."""
        known = {"items": {0: "items"}}
        if self.method.reads_history:
            known["history"] = {0: "length"}
        if self.own is None:
            known |= {name: {0: "users"} for name in self.names["private"]}
            known |= {name: {0: "users", 1: "items"} for name in self.names["rows"]}
        return known

    def forward(self, *values: Tensor) -> Tensor:
        given = dict(zip(self.inputs, values, strict=True))
        items, history = given.pop("items"), given.pop("history", None)
        if self.own is not None:
            given |= self.own.private | {name: table[items][None] for name, table in self.own.rows.items()}
        users = next(iter(given.values())).shape[0] if given else 1
        shared = {name: self.get_buffer(_safe(name)) for name in self.names["shared"]}
        p = {name: given[name] for name in (*self.names["private"], *self.names["rows"])}
        for name, param in self.method.shared().items():
            rows = shared[name][items] if param.rows else shared[name]
            p[name] = rows.expand(users, *rows.shape)
            if self.own is not None and name in self.own.tuned:
                p[name + SERVER], p[name] = p[name], self.get_buffer(_safe(name + SERVER))[items][None]
        if history is not None:
            p |= _recall(self.method, shared, history, items[None])
        return self.method.score(p)


def _recall(method: DeviceMethod, shared: Params, history: Tensor, asked: Tensor) -> Params:
    """What one user's device makes of its history [length], for the items [1, K] asked for."""
    if isinstance(method, FedSASRec):  # its own function sorts histories by their lengths, which a graph cannot
        seen = history[-method.window :]
        output = encode_last(method.network, shared, seen[None], _length(seen))
        return {"scores": dot(output, shared["items"][asked]) + shared["item_bias"][asked]}
    user = torch.zeros(1, dtype=torch.int64)
    return method.recall(shared, History(user, history[None], _length(history), devices_of([], 0)), asked)


def _length(items: Tensor) -> Tensor:
    """[1] the number of items, as a tensor: a graph has it for any number."""
    return torch.ones_like(items).sum()[None]


def _safe(name: str) -> str:
    return _TABLE + name.replace(".", "/")


def graph(score: Score, given: Given, n_items: int) -> bytes:
    """The file of a graph. Tables are inside as they are stored, and are restored when they are used."""
    onnx = needs("onnx")
    names, buffer = score.inputs, io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's word on tracing, and on its age
        try:
            torch.onnx.export(
                score,
                tuple(example(score, n_items, users=2, seed=0).values()),
                buffer,  # type: ignore[arg-type]  # it writes into any file
                dynamo=False,  # the other one needs one more package
                opset_version=_OPSET,
                do_constant_folding=False,  # it would make new tables of the old ones
                input_names=list(names),
                output_names=["scores"],
                dynamic_axes=names | {"scores": {0: "users", 1: "items"}},
            )
        except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
            why = str(error).splitlines()[0]
            raise UserError(
                f"'{score.method.name}' cannot be written as ONNX ({why}); use --format safetensors"
            ) from None
    model = onnx.load_from_string(buffer.getvalue())
    _store(onnx, model, given)
    for node in model.graph.node:
        node.ClearField("doc_string")
        node.ClearField("name")
    model.producer_name, model.producer_version = "federec", ""
    onnx.checker.check_model(model)
    found: bytes = model.SerializeToString()
    return found


def _store(onnx: Any, model: Any, given: Given) -> None:
    """Put tables into the graph as they are stored."""
    values = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, arrays in given.stored.items():
        kept, key = arrays["values"], _safe(name)
        if key not in values or kept.dtype == np.float32:
            continue
        model.graph.initializer.remove(values[key])
        flat = "/stored", "/rows", "/scales"
        code, rows, scales = (key + end for end in flat)
        model.graph.initializer.append(onnx.numpy_helper.from_array(kept, code))
        shape = np.array(given.shapes[name], np.int64)
        made = [onnx.helper.make_node("Cast", [code], [rows], to=onnx.TensorProto.FLOAT)]
        if "scales" in arrays:
            model.graph.initializer.append(onnx.numpy_helper.from_array(arrays["scales"][:, None], scales))
            made.append(onnx.helper.make_node("Mul", [rows, scales], [rows + "/scaled"]))
            rows += "/scaled"
        model.graph.initializer.append(onnx.numpy_helper.from_array(shape, key + "/shape"))
        made.append(onnx.helper.make_node("Reshape", [rows, key + "/shape"], [key]))
        for node in reversed(made):
            model.graph.node.insert(0, node)


def example(score: Score, n_items: int, users: int, seed: int, asked: int = 7, length: int = 5) -> dict[str, Tensor]:
    """Random inputs of a graph; one that reads a history only takes one user."""
    generator = torch.Generator().manual_seed(seed)
    found = {"items": torch.randint(n_items, (asked,), generator=generator)}
    if score.method.reads_history:
        users = 1
        found["history"] = torch.randperm(n_items, generator=generator)[:length]
    for name, param in score.method.private().items() if score.own is None else ():
        lead = (users, asked) if param.rows else (users,)
        found[name] = torch.randn(*lead, *param.sized(n_items), generator=generator)
    return found


@dataclass(frozen=True)
class Agreement:
    """How far torch and onnxruntime are apart."""

    difference: float
    largest: float
    """The largest score, in absolute value."""

    @property
    def fine(self) -> bool:
        return self.difference <= TOLERANCE * max(1.0, self.largest)


def compared(file: bytes, score: Score, n_items: int) -> Agreement:
    """Both on random inputs of several sizes, other ones than the graph was made with."""
    session = needs("onnxruntime").InferenceSession(file, providers=["CPUExecutionProvider"])
    difference = largest = 0.0
    for seed, (users, asked, length) in enumerate(((1, n_items, 1), (3, 11, 9), (2, 1, 60)), 1):
        inputs = example(score, n_items, users, seed, asked, length)
        with torch.no_grad():
            expected = score(*inputs.values()).numpy()
        (found,) = session.run(None, {name: value.numpy() for name, value in _taken(session, inputs).items()})
        difference = max(difference, float(np.abs(found - expected).max(initial=0)))
        largest = max(largest, float(np.abs(expected).max(initial=0)))
    return Agreement(difference, largest)


def _taken(session: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs that the graph has: one that is never used is not in it."""
    known = {each.name for each in session.get_inputs()}
    return {name: value for name, value in inputs.items() if name in known}
