"""A transformer over a user's items, oldest first, as plain functions of named parameters.

    h_t = v(item t) + place(t)                     places count from the newest item of the window backwards
    h = h + Attention(norm(h))                     causal: position t sees items 0..t
    h = h + W2 GELU(W1 norm(h) + b1) + b2          both in each of the layers; norms come first
    output_t = norm(h_t),    logit_tj = output_t . v_j + bias_j            one table of items for input and output

Padding is on the right, where no real position looks. Dropout follows the embedding, the weights of attention, both
parts of each layer and the GELU. Its masks are a pure function of (key of the device's stream, position in its
history), so that they do not depend on padding, nor on which windows are computed together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention

from federec import streams
from federec.cohort.layers import ITEMS, Param, Params

_LANES = 4  # random numbers of 16 bits in one draw of 64
_BLOCK = 64  # queries that attention computes at once during training on a CPU


@dataclass(frozen=True)
class Transformer:
    """The sizes of the network."""

    dim: int = 64
    layers: int = 2
    heads: int = 2
    window: int = 200
    """Items that it sees at most."""

    def params(self) -> dict[str, Param]:
        """Its parameters. The scale of a norm is stored as its difference from 1."""
        dim = self.dim
        params = {
            "items": Param((ITEMS, dim), scale=0.02),
            "item_bias": Param((ITEMS,), "zeros"),
            "places": Param((self.window, dim), scale=0.02),
            **_norm("norm", dim),
        }
        for layer in range(self.layers):
            # No bias: that of keys would have a gradient of zero, and Adam would make steps of its rounding errors.
            params[f"{layer}.attention.in.weight"] = Param((3 * dim, dim), "uniform", math.sqrt(6 / (4 * dim)))
            params |= _norm(f"{layer}.attention.norm", dim) | _linear(f"{layer}.attention.out", dim, dim, dim**-0.5)
            params |= _norm(f"{layer}.hidden.norm", dim) | _linear(f"{layer}.hidden.in", dim, 4 * dim, dim**-0.5)
            params |= _linear(f"{layer}.hidden.out", 4 * dim, dim, (4 * dim) ** -0.5)
        return params


@dataclass(frozen=True)
class Dropout:
    """Which values are dropped in some windows."""

    rate: float
    key: Tensor
    """[W] a key of random numbers for each window."""
    position: Tensor
    """[W, T] positions of the window's items in their history."""

    def __call__(self, x: Tensor, site: int) -> Tensor:
        """x [W, T, width] with values dropped and the others made larger; `site` is the number of the place in the
        network."""
        if not self.rate:
            return x
        return x * self.masks(x.shape[2], x.shape[2], range(site, site + 1))[:, 0]

    def masks(self, width: int, most: int, sites: range) -> Tensor:
        """[W, sites, T, width]: 0 for what is dropped. The numbers are the same for any `width` up to `most`."""
        draws = torch.arange(-(-width // _LANES), device=self.key.device)
        first = torch.arange(sites.start, sites.stop, device=self.key.device)[:, None, None] << 32
        key = streams.later(self.key[:, None], self.position * -(-most // _LANES))
        lanes: Tensor = streams.bits(key[:, None, :, None], first + draws).view(torch.int16)[..., :width]
        kept = torch.empty(lanes.shape, device=lanes.device)
        # Several times as fast as a comparison to true and false, which then become numbers.
        torch.ge(lanes, round(self.rate * (1 << 16)) - (1 << 15), out=kept)
        return kept.mul_(1 / (1 - self.rate))


def encode(shape: Transformer, p: Params, items: Tensor, counts: Tensor, dropout: Dropout | None = None) -> Tensor:
    """Outputs [W, T, dim] at all positions of windows [W, T] of items, padded on the right to any width."""
    rows = embedding(items, p["items"]) + embedding(places(shape, items, counts), p["places"])
    return encode_rows(shape, p, rows, dropout)


def encode_rows(shape: Transformer, p: Params, rows: Tensor, dropout: Dropout | None = None) -> Tensor:
    """The same from v(item t) + place(t) [W, T, dim]. The other parameters may have a leading dimension [W, ...]: each
    window's own."""
    h = rows if dropout is None else dropout(rows, 0)
    for layer in range(shape.layers):
        h = _layer(shape, p, layer, h, dropout)
    return _normed(p, "norm", h)


def encode_last(shape: Transformer, p: Params, items: Tensor, counts: Tensor) -> Tensor:
    """Outputs [W, dim] at the last position only: what the last layer makes of the others is not needed."""
    h = embedding(items, p["items"]) + embedding(places(shape, items, counts), p["places"])
    for layer in range(shape.layers - 1):
        h = _layer(shape, p, layer, h, None)
    return _normed(p, "norm", _last_layer(shape, p, shape.layers - 1, h, counts))


def places(shape: Transformer, items: Tensor, counts: Tensor) -> Tensor:
    """The place of each item of the windows; some place for padding."""
    place = shape.window - counts[:, None] + torch.arange(items.shape[1], device=items.device)
    return place.clamp(0, shape.window - 1)


def _layer(shape: Transformer, p: Params, layer: int, h: Tensor, dropout: Dropout | None) -> Tensor:
    """One layer at all positions."""
    first = 1 + (1 + shape.heads) * layer  # number of the layer's first place for dropout; 0 is the embedding
    widths = (shape.dim, 4 * shape.dim, shape.dim)
    kept: tuple[Tensor, ...] = ()
    if dropout is not None and dropout.rate:
        kept = dropout.masks(sum(widths), sum(widths), range(first, first + 1))[:, 0].split(widths, 2)

    def dropped(x: Tensor, place: int) -> Tensor:
        return x * kept[place] if kept else x

    x = _times(_normed(p, f"{layer}.attention.norm", h), p[f"{layer}.attention.in.weight"])
    query, key, value = (part.unflatten(2, (shape.heads, -1)).transpose(1, 2) for part in x.chunk(3, 2))
    if dropout is not None and dropout.rate:
        sites = range(first + 1, first + 1 + shape.heads)
        mixed: Tensor = _Attention.apply(query, key, value, dropout, shape.window, sites)  # type: ignore[no-untyped-call]
    else:
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
    h = h + dropped(_through(p, f"{layer}.attention.out", mixed.transpose(1, 2).flatten(2)), 0)
    x = _through(p, f"{layer}.hidden.in", _normed(p, f"{layer}.hidden.norm", h))
    return h + dropped(_through(p, f"{layer}.hidden.out", dropped(gelu(x), 1)), 2)


def _last_layer(shape: Transformer, p: Params, layer: int, h: Tensor, counts: Tensor) -> Tensor:
    """One layer at the last position only, [W, dim]. Its query meets the rows x_t before they become keys and values,
    which then need no products of their own:

        q . (K x_t) = (K' q) . x_t,        sum_t w_t (V x_t) = V (sum_t w_t x_t)        in each head
    """
    row, last = torch.arange(len(h), device=h.device), (counts - 1).clamp(min=0)
    seen = torch.arange(h.shape[1], device=h.device) <= last[:, None]
    x, weight = _normed(p, f"{layer}.attention.norm", h), p[f"{layer}.attention.in.weight"]
    by_query, by_key, by_value = weight.view(3, shape.heads, -1, shape.dim)
    asked = torch.einsum("wd,hkd,hke->whe", x[row, last], by_query, by_key)
    scale = (shape.dim // shape.heads) ** -0.5
    met = scaled_dot_product_attention(asked[:, None], x[:, None], x[:, None], seen[:, None, None], scale=scale)
    mixed = torch.einsum("whd,hkd->whk", met[:, 0], by_value)
    h = h[row, last] + _through(p, f"{layer}.attention.out", mixed.flatten(1))
    x = _through(p, f"{layer}.hidden.in", _normed(p, f"{layer}.hidden.norm", h))
    return h + _through(p, f"{layer}.hidden.out", gelu(x))


class _Attention(torch.autograd.Function):
    """(softmax(Q K' / sqrt(width)) * masks) V, causal, of queries, keys and values [W, heads, T, width]. Autograd would
    pass over tables [W, heads, T, T] twice as often. A block of queries meets only the keys up to its end, so that
    little of what the future hides is computed."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, dropout: Dropout, window: int, sites: range
    ) -> Tensor:
        q, k, v = (part.flatten(0, 1) for part in (query, key, value))
        mixed, tables = torch.empty_like(q), []
        for block, stop in _blocks(q):
            hidden = q.new_full((stop - block.start, stop), -torch.inf).triu(1 + block.start)
            weights = torch.baddbmm(hidden, q[:, block], k[:, :stop].mT, alpha=q.shape[2] ** -0.5).softmax(2)
            masks = replace(dropout, position=dropout.position[:, block]).masks(stop, window, sites).flatten(0, 1)
            kept = weights * masks
            mixed[:, block] = kept @ v[:, :stop]
            tables += [weights, masks, kept]
        ctx.save_for_backward(q, k, v, *tables)
        return mixed.view(query.shape)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *tables = ctx.saved_tensors
        shape, d = above[0].shape, above[0].flatten(0, 1)
        to_q, to_k, to_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for at, (block, stop) in enumerate(_blocks(q)):
            weights, masks, kept = tables[3 * at : 3 * at + 3]
            slope = (d[:, block] @ v[:, :stop].mT).mul_(masks)
            slope = torch._softmax_backward_data(slope, weights, 2, weights.dtype)
            to_q[:, block] = slope @ k[:, :stop]
            to_k[:, :stop] += slope.mT @ q[:, block]
            to_v[:, :stop] += kept.mT @ d[:, block]
        scale = q.shape[2] ** -0.5
        return *(part.view(shape) for part in (to_q.mul_(scale), to_k.mul_(scale), to_v)), None, None, None


def _blocks(queries: Tensor) -> Iterator[tuple[slice, int]]:
    """Blocks of the positions of queries [.., T, width], and where they end. On a GPU, where launches cost more than
    what the future hides, there is one."""
    size = queries.shape[1]
    for start in range(0, size, size if queries.is_cuda else _BLOCK):
        stop = size if queries.is_cuda else min(size, start + _BLOCK)
        yield slice(start, stop), stop


class _Product(torch.autograd.Function):
    """x weight' + bias of windows [W, T, in] with each window's own weight [W, out, in]. Autograd would leave the
    gradient of the weights turned, and adding it up would read it against the grain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return x @ weight.mT if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (d,) = ctx.saved_tensors, above
        return d @ weight, d.mT @ x, d.sum(1) if ctx.biased else None


def _norm(name: str, dim: int) -> dict[str, Param]:
    return {f"{name}.scale": Param((dim,), "zeros"), f"{name}.shift": Param((dim,), "zeros")}


def _linear(name: str, inputs: int, outputs: int, bound: float) -> dict[str, Param]:
    return {f"{name}.weight": Param((outputs, inputs), "uniform", bound), f"{name}.bias": Param((outputs,), "zeros")}


def _normed(p: Params, name: str, x: Tensor) -> Tensor:
    scale, shift = 1 + p[f"{name}.scale"], p[f"{name}.shift"]
    width = (int(x.shape[-1]),)  # a plain number, also where the function is traced
    if scale.dim() == 1:
        return layer_norm(x, width, scale, shift)
    return torch.addcmul(shift[:, None], layer_norm(x, width), scale[:, None])


def _through(p: Params, name: str, x: Tensor) -> Tensor:
    return _times(x, p[f"{name}.weight"], p[f"{name}.bias"])


def _times(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.dim() == 2:
        return linear(x, weight, bias)
    product: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product
