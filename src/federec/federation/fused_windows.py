"""Rounds and scores of methods that learn which item comes next: a CPU kernel computes their transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.federation.fused_base import Floats, Integers
from federec.federation.fused_sums import SummedRound
from federec.federation.scoring import score_global
from federec.federation.state import State
from federec.federation.threads import borrowed, deal, in_threads, one_blas_thread, threads
from federec.kernels import transformer as kernels
from federec.mathematics.transformer import Transformer
from federec.mathematics.windows import Windows, using
from federec.methods.base import DeviceMethod
from federec.methods.forms import NextItem

T = TypeVar("T")

_PRODUCTS = (
    ("attend", "attention.in", "attention.norm"),
    ("mix", "attention.out", ""),
    ("widen", "hidden.in", "hidden.norm"),
    ("narrow", "hidden.out", ""),
)
"""Of each layer: the name of a product in the kernels and in parameters, and of the norm that is part of it."""


class KernelNetwork:
    """`mathematics.windows.Network` by the kernels."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        """They keep the threads' memory."""

    def gradient(
        self, shape: Transformer, p: Params, windows: Windows, rate: float, keys: Tensor
    ) -> tuple[Tensor, Params]:
        learned = kernels.Learned(
            windows.items.numpy(),
            windows.targets.numpy(),
            windows.counts.numpy(),
            windows.first.numpy(),
            keys[windows.owner].numpy().view(np.uint64),
        )
        sizes, weights = _sizes(shape, rate), _weights(shape, p)
        blocks = weights.items.reshape(-1, kernels.ITEMS, shape.dim)
        turned, losses = _transposed(weights, blocks), np.zeros(len(learned.counts), np.float32)

        def work(chosen: Integers, memory: kernels.Workspace) -> kernels.Weights:
            total = kernels.Weights(*(np.zeros_like(value) for value in weights))
            kernels.transformer_gradient(chosen, sizes, learned, weights, turned, total, losses, memory)
            return total

        sums = self._shared(shape, learned.counts, len(blocks), work)
        found = _params(shape, p, kernels.Weights(*(_summed(parts) for parts in zip(*sums, strict=True))))
        if not all(bool(value.isfinite().all()) for value in (*p.values(), found["item_bias"])):
            losses.fill(np.nan)  # kernels do not tell what is not a number from others
        return p["item_bias"].new_zeros(len(keys)).index_add_(0, windows.owner, torch.from_numpy(losses)), found

    def outputs(self, shape: Transformer, p: Params, items: Tensor, counts: Tensor) -> Tensor:
        seen = counts.clamp(max=shape.window)
        at = (counts - seen)[:, None] + torch.arange(min(items.shape[1], shape.window))
        newest, none = items.gather(1, at.clamp(max=max(0, items.shape[1] - 1))), np.zeros(0, np.uint64)
        learned = kernels.Learned(newest.numpy(), newest.numpy(), seen.numpy(), seen.numpy(), none)
        sizes, weights, found = _sizes(shape, 0.0), _weights(shape, p), torch.zeros(len(items), shape.dim)
        turned = _transposed(weights, np.zeros((0, kernels.ITEMS, shape.dim), np.float32))

        def work(chosen: Integers, memory: kernels.Workspace) -> None:
            kernels.transformer_outputs(chosen, sizes, learned, weights, turned, found.numpy(), memory)

        self._shared(shape, learned.counts, 0, work)
        return torch.addcmul(p["norm.shift"], found, 1 + p["norm.scale"]) * (counts > 0)[:, None]

    def _shared(
        self, shape: Transformer, counts: Integers, blocks: int, work: Callable[[Integers, kernels.Workspace], T]
    ) -> list[T]:
        """What each thread makes of its part of the windows, which have so many items; those without any are left
        out."""
        order = np.argsort(-counts, kind="stable")[: int(np.count_nonzero(counts))]
        count = max(1, min(threads(), len(order)))
        dealt = deal(counts[order], count, 0, 1)
        parts = np.split(order[dealt.order], dealt.ptr[1:-1])
        sizes = shape.layers, shape.heads, shape.window, shape.dim, blocks

        made: dict[int, T] = {}

        def one(number: int) -> None:
            with borrowed(self.devices, kernels.make_workspace, *sizes) as memory:
                made[number] = work(parts[number], memory)

        with one_blas_thread():
            in_threads(count, one)
        return [made[number] for number in range(count)]


class WindowsRound(SummedRound):
    """A round of such a method, and the sum of the noise on its messages."""

    form: NextItem

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        if not len(users):
            compile_network(self.form.network, self.inputs.state.shared, self.inputs.devices)
        with using(KernelNetwork(self.inputs.devices)):
            return super().play(users, ask, judges)


def compile_network(shape: Transformer, p: Params, devices: Devices) -> None:
    """Compile the kernels, or load them."""
    network, none = KernelNetwork(devices), torch.zeros(0, 1, dtype=torch.long)
    network.gradient(shape, p, Windows(none, none, *[none[:, 0]] * 3), 0.0, none[:, 0])
    network.outputs(shape, p, none, none[:, 0])


def windows_scores(
    form: NextItem, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K]."""
    with using(KernelNetwork(devices)):
        return score_global(method, state, users, items, devices)


def _sizes(shape: Transformer, rate: float) -> kernels.Shape:
    level = np.int16(round(rate * (1 << 16)) - (1 << 15))
    return kernels.Shape(shape.heads, shape.window, level, np.float32(1 / (1 - rate)))


def _weights(shape: Transformer, p: Params) -> kernels.Weights:
    """Parameters as the kernels want them. With the scale s and the shift a of the norm before a product, its weights
    are W diag(1 + s), and W a is part of its bias."""

    def stacked(name: str) -> Tensor:
        return torch.stack([p[f"{layer}.{name}"] for layer in range(shape.layers)])

    items, bias = _in_blocks(*_folded(p["items"], p["item_bias"], p["norm.scale"], p["norm.shift"]))
    found = {"rows": p["items"], "places": p["places"], "items": items, "item_bias": bias}
    for own, name, norm in _PRODUCTS:
        weight = stacked(f"{name}.weight")
        bias = stacked(f"{name}.bias") if f"0.{name}.bias" in p else weight.new_zeros(())
        if norm:
            weight, bias = _folded(weight, bias, stacked(f"{norm}.scale"), stacked(f"{norm}.shift"))
        found |= {own: weight, f"{own}_bias": bias}
    return kernels.Weights(**{name: value.contiguous().numpy() for name, value in found.items()})


def _folded(weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    return weight * (1 + scale[..., None, :]), bias + (weight @ shift[..., None])[..., 0]


def _in_blocks(rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and biases of items, filled up to whole blocks."""
    missing = -len(rows) % kernels.ITEMS
    never = bias.new_full((missing,), float(kernels.NEVER))
    return torch.cat([rows, rows.new_zeros(missing, rows.shape[1])]), torch.cat([bias, never])


def _params(shape: Transformer, p: Params, sums: kernels.Weights) -> Params:
    """Sums of the kernels by the names of parameters, in their order."""
    of, count = kernels.Weights(*map(torch.from_numpy, sums)), len(p["items"])
    found = {"places": of.places, "item_bias": of.item_bias[:count]}

    def unfold(name: str, norm: str, sum_: Tensor, bias: Tensor) -> None:
        """With the gradients G and b of a product's folded weights and bias."""
        weight, scale, shift = p[name], p[f"{norm}.scale"], p[f"{norm}.shift"]
        found[name] = sum_ * (1 + scale) + bias[:, None] * shift
        found[f"{norm}.scale"], found[f"{norm}.shift"] = (weight * sum_).sum(0), bias @ weight

    unfold("items", "norm", of.items[:count], found["item_bias"])
    found["items"] += of.rows
    for layer in range(shape.layers):
        for own, name, norm in _PRODUCTS:
            weight, bias = getattr(of, own)[layer], getattr(of, f"{own}_bias")[layer]
            if f"{layer}.{name}.bias" in p:
                found[f"{layer}.{name}.bias"] = bias
            if norm:
                unfold(f"{layer}.{name}.weight", f"{layer}.{norm}", weight, bias)
            else:
                found[f"{layer}.{name}.weight"] = weight
    return {name: found[name] for name in shape.params()}


def _transposed(weights: kernels.Weights, blocks: Floats) -> kernels.Transposed:
    given = blocks, weights.attend, weights.mix, weights.widen, weights.narrow
    return kernels.Transposed(*(np.ascontiguousarray(value.swapaxes(1, 2)) for value in given))


def _summed(parts: tuple[Floats, ...]) -> Floats:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
