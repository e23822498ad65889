"""Learning which item comes next: histories cut into windows, the loss of a transformer on them, and its gradient.

    loss = - sum over positions t of ln softmax_j(output_t . v_j + bias_j)[item t + 1]

A long history is cut into windows from its end, so that each of its items but the first is a target once. Windows of
like lengths are computed together, and logits for some positions at a time: there is never a table of all positions
and items. Who plays a round says whether torch computes that, or `kernels.transformer` (`using`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from federec import streams
from federec.cohort.layers import Params
from federec.mathematics.transformer import Dropout, Transformer, encode, encode_last, encode_rows, places

_POSITIONS, _GPU_POSITIONS = 1 << 11, 1 << 17  # that go through the network together, padding included
_PADDING, _GPU_PADDING = 0.15, 1.0  # fraction of them that may be padding
_LOGITS, _GPU_LOGITS = 1 << 20, 1 << 27  # held at a time
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Windows:
    """Windows of several histories, sorted by falling length and padded on the right."""

    items: Tensor
    """[W, T] inputs."""
    targets: Tensor
    """[W, T] the item that follows each; -1 for padding."""
    counts: Tensor
    """[W] inputs of each window."""
    owner: Tensor
    """[W] the history that each window is of."""
    first: Tensor
    """[W] position of the window's first input in its history."""

    @staticmethod
    def of(items: Tensor, counts: Tensor, window: int) -> Windows:
        """The windows of histories [C, L] with so many items, oldest first."""
        targets = (counts - 1).clamp(min=0)
        many = -(-targets // window)
        owner = torch.repeat_interleave(torch.arange(len(items), device=items.device), many)
        from_end = torch.arange(len(owner), device=items.device) - (many.cumsum(0) - many)[owner]
        stop = targets[owner] - from_end * window
        first = (stop - window).clamp(min=0)
        order = (stop - first).argsort(descending=True, stable=True)
        owner, first, length = owner[order], first[order], (stop - first)[order]
        step = torch.arange(int(length[0]) if len(length) else 0, device=items.device)
        real, at = step < length[:, None], first[:, None] + step
        at = at.where(real, 0)
        inputs, following = items[owner[:, None], at], items[owner[:, None], at + 1]
        return Windows(inputs, following.where(real, -1), length, owner, first)

    def parts(self, positions: int | None = None, most: int | None = None) -> Iterator[Windows]:
        """A few windows at a time, without needless padding: so many positions, and at most so many windows."""
        for some in together(self.counts, positions, most):
            width = int(self.counts[some.start])
            yield Windows(
                self.items[some, :width],
                self.targets[some, :width],
                self.counts[some],
                self.owner[some],
                self.first[some],
            )


class Network(Protocol):
    """What computes a transformer on windows."""

    def gradient(
        self, shape: Transformer, p: Params, windows: Windows, rate: float, keys: Tensor
    ) -> tuple[Tensor, Params]:
        """As the function `gradient`."""

    def outputs(self, shape: Transformer, p: Params, items: Tensor, counts: Tensor) -> Tensor:
        """As the function `outputs`."""


_taken: ContextVar[Network | None] = ContextVar("network", default=None)


@contextmanager
def using(network: Network) -> Iterator[None]:
    """Transformers are computed by this in the context."""
    before = _taken.set(network)
    try:
        yield
    finally:
        _taken.reset(before)


def gradient(shape: Transformer, p: Params, windows: Windows, rate: float, keys: Tensor) -> tuple[Tensor, Params]:
    """Each history's loss, summed over its positions, and the gradient of their sum. Values are dropped at this rate,
    by random numbers of each history's key [C]."""
    network = _taken.get()
    if network is not None:
        return network.gradient(shape, p, windows, rate, keys)
    losses = p["item_bias"].new_zeros(len(keys))
    total: Params = {}
    below = {name: value.detach().requires_grad_() for name, value in p.items() if name != "item_bias"}
    for part in windows.parts():
        real = part.targets >= 0
        with _quick(keys):
            output = encode(shape, below, part.items, part.counts, _dropout(part, rate, keys))[real]
            loss, onto, items, bias = _softmax(output.detach(), p["items"], p["item_bias"], part.targets[real])
            found = dict(zip(below, torch.autograd.grad(output, [*below.values()], onto), strict=True))
        losses.index_add_(0, part.owner[:, None].expand_as(real)[real], loss)
        found["items"] += items
        found["item_bias"] = bias
        if total:
            torch._foreach_add_([total[name] for name in found], [*found.values()])
        else:
            total = found
    return losses, {name: total[name] for name in p} if total else {name: torch.zeros_like(p[name]) for name in p}


def gradients(shape: Transformer, p: Params, windows: Windows, rate: float, keys: Tensor) -> tuple[Tensor, Params]:
    """Each history's loss, summed over its positions, and its own gradient [C, ...] at its own parameters [C, ...], or
    at those of all, expanded. With the slopes d_t at what a layer gives for inputs x_t, a window's own gradient of its
    weights is sum_t d_t x_t'."""
    n_items, dim = p["items"].shape[1:]
    most = _GPU_LOGITS if keys.is_cuda else 2 * _LOGITS  # short windows are few positions for one step
    losses = p["item_bias"].new_zeros(len(keys))
    total = {name: torch.zeros_like(value, memory_format=torch.contiguous_format) for name, value in p.items()}
    for part in windows.parts(max(1, most // n_items), max(1, most // (n_items * dim))):
        own, owner, real = _of(p, part.owner), part.owner[:, None], part.targets >= 0
        at = {"items": part.items, "places": places(shape, part.items, part.counts)}
        rows = (p["items"][owner, at["items"]] + p["places"][owner, at["places"]]).requires_grad_()
        below = {name: value.requires_grad_() for name, value in own.items() if name not in ("item_bias", *at)}
        with _quick(keys):
            output = encode_rows(shape, below, rows, _dropout(part, rate, keys))
            given, items = output.detach(), own["items"]
            error = torch.baddbmm(own["item_bias"][:, None], given, items.mT)
            torch.softmax(error, 2, out=error)
            target = part.targets.clamp(min=0)[:, :, None]
            chosen = error.gather(2, target)
            error.scatter_(2, target, chosen - 1).mul_(real[:, :, None])
            to_rows, *slopes = torch.autograd.grad(output, [rows, *below.values()], error @ items)
            found = dict(zip(below, slopes, strict=True)) | {"items": error.mT @ given, "item_bias": error.sum(1)}
        loss = chosen.clamp(min=_TINY).log()[:, :, 0] * real
        losses.index_add_(0, part.owner, loss.sum(1), alpha=-1)
        for name, value in found.items():
            total[name].index_add_(0, part.owner, value)
        for name, index in at.items():
            total[name].index_put_((owner, index), to_rows, accumulate=True)
    return losses, total


def _of(p: Params, owner: Tensor) -> Params:
    """Each window's own parameters [W, ...], of [C, ...]; those that all have in common are not copied."""
    same = p["items"].stride(0) == 0
    return {name: value[0].expand(len(owner), *value[0].shape) if same else value[owner] for name, value in p.items()}


def _dropout(windows: Windows, rate: float, keys: Tensor) -> Dropout:
    position = windows.first[:, None] + torch.arange(windows.items.shape[1], device=windows.items.device)
    return Dropout(rate, keys[windows.owner], position)


@contextmanager
def _quick(where: Tensor) -> Iterator[None]:
    """Within it a GPU multiplies in TF32, several times as fast: ten bits of a factor are enough for a gradient. Scores
    are computed outside, in full precision."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = where.is_cuda or before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _softmax(output: Tensor, items: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """The loss at outputs [P, dim], and its gradients with respect to outputs, item rows and biases, by hand: autograd
    would hold three tables [P, items] at a time, this holds one and fills it again and again."""
    loss, onto = output.new_empty(len(output)), torch.empty_like(output)
    to_items, to_bias = torch.zeros_like(items), torch.zeros_like(bias)
    size = max(1, (_GPU_LOGITS if output.is_cuda else _LOGITS) // len(items))
    table = output.new_empty(min(size, len(output)), len(items))
    for start in range(0, len(output), size):
        part = slice(start, start + size)
        x, target = output[part], targets[part, None]
        error = torch.addmm(bias, x, items.T, out=table[: len(x)])
        torch.softmax(error, 1, out=error)
        chosen = error.gather(1, target)
        loss[part] = -chosen.clamp(min=_TINY).log()[:, 0]
        error.scatter_(1, target, chosen - 1)
        torch.mm(error, items, out=onto[part])
        to_items.addmm_(error.T, x)
        to_bias += error.sum(0)
    return loss, onto, to_items, to_bias


def outputs(shape: Transformer, p: Params, items: Tensor, counts: Tensor) -> Tensor:
    """What the network makes of histories [C, L] with so many items, oldest first: [C, dim], of which the product with
    an item's row, plus its bias, is the item's score. Zeros for an empty history."""
    network = _taken.get()
    if network is not None:
        return network.outputs(shape, p, items, counts)
    order = counts.argsort(descending=True, stable=True)
    seen = counts[order].clamp(max=shape.window)
    found = p["items"].new_zeros(len(items), shape.dim)
    for some in together(seen.clamp(min=1)):
        rows, length = order[some], seen[some]
        width = int(length[0])
        if not width:
            break
        step = torch.arange(width, device=items.device)
        at = (counts[rows, None] - length[:, None] + step).clamp(max=items.shape[1] - 1)
        last = encode_last(shape, p, items[rows[:, None], at], length)
        found[rows] = last * (length > 0)[:, None]
    return found


def together(counts: Tensor, positions: int | None = None, most: int | None = None) -> Iterator[slice]:
    """Slices of windows, or of histories, of these falling lengths that are computed at once: with so many positions,
    and at most so many of them."""
    positions = positions or (_GPU_POSITIONS if counts.is_cuda else _POSITIONS)
    least = 1 - (_GPU_PADDING if counts.is_cuda else _PADDING)
    lengths, start = counts.tolist(), 0
    while start < len(lengths):
        longest, filled = lengths[start], lengths[start]
        last = min(len(lengths), start + max(1, min(positions // longest, most or positions)))
        stop = start + 1
        while stop < last and filled + lengths[stop] >= least * longest * (stop + 1 - start):
            filled += lengths[stop]
            stop += 1
        yield slice(start, stop)
        start = stop


def stream_keys(keys: Tensor, step: int) -> Tensor:
    """Keys of the random numbers of a device's local step in a round, from its keys in that round."""
    found: Tensor = streams.bits(keys, streams.DROPOUT + step)
    return found
