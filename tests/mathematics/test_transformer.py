from dataclasses import replace

import pytest
import torch
from torch import nn

from federec import streams
from federec.mathematics import transformer as module
from federec.mathematics.transformer import Dropout, Transformer, _Attention, encode, encode_last

SHAPE = Transformer(dim=8, layers=2, heads=2, window=6)


def parameters(shape=SHAPE, n_items=20, seed=0):
    """Random ones, so that no part of the network is at its neutral start."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(param.sized(n_items), generator=generator) * 0.4 for name, param in shape.params().items()
    }


def windows(*rows):
    counts = torch.tensor([len(row) for row in rows])
    items = torch.zeros(len(rows), int(counts.max()), dtype=torch.long)
    for at, row in enumerate(rows):
        items[at, : len(row)] = torch.tensor(row)
    return items, counts


def test_it_is_torchs_encoder():
    p = parameters()
    items, counts = windows([3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8])
    layer = nn.TransformerEncoderLayer(8, 2, 32, 0.0, activation="gelu", batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
    names = {"linear1": "hidden.in", "linear2": "hidden.out", "self_attn.out_proj": "attention.out"}
    state = {"norm.weight": 1 + p["norm.scale"], "norm.bias": p["norm.shift"]}
    for n in range(2):
        state[f"layers.{n}.self_attn.in_proj_weight"] = p[f"{n}.attention.in.weight"]
        state[f"layers.{n}.self_attn.in_proj_bias"] = torch.zeros(24)
        for part in ("weight", "bias"):
            state |= {f"layers.{n}.{theirs}.{part}": p[f"{n}.{ours}.{part}"] for theirs, ours in names.items()}
        for theirs, ours in (("norm1", "attention.norm"), ("norm2", "hidden.norm")):
            state[f"layers.{n}.{theirs}.weight"] = 1 + p[f"{n}.{ours}.scale"]
            state[f"layers.{n}.{theirs}.bias"] = p[f"{n}.{ours}.shift"]
    encoder.load_state_dict(state)
    expected = encoder(p["items"][items] + p["places"], mask=nn.Transformer.generate_square_subsequent_mask(6))
    torch.testing.assert_close(encode(SHAPE, p, items, counts), expected, rtol=1e-4, atol=1e-5)


def test_a_later_item_changes_no_earlier_output():
    p = parameters()
    items, counts = windows([3, 1, 4, 1, 5, 9])
    other = items.clone()
    other[0, 3] = 17
    before, after = encode(SHAPE, p, items, counts), encode(SHAPE, p, other, counts)
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any(2).all()


def test_padding_does_not_matter():
    p = parameters()
    together = encode(SHAPE, p, *windows([3, 1, 4, 1, 5, 9], [2, 7]))
    padded = windows([2, 7])[0]
    for filler in (0, 11):
        wide = torch.cat([padded, torch.full((1, 4), filler)], 1)
        torch.testing.assert_close(encode(SHAPE, p, wide, torch.tensor([2]))[0, :2], together[1, :2])
    torch.testing.assert_close(encode(SHAPE, p, *windows([2, 7]))[0], together[1, :2])


def test_order_matters():
    p = parameters()
    last = encode_last(SHAPE, p, *windows([3, 1, 4, 5], [1, 3, 4, 5]))
    assert (last[0] - last[1]).abs().max() > 1e-3


def test_the_last_output_alone_is_the_last_of_all():
    p = parameters()
    for shape in (SHAPE, replace(SHAPE, layers=1)):
        items, counts = windows([3, 1, 4, 1, 5, 9], [2, 7], [8])
        every = encode(shape, p, items, counts)
        expected = every[torch.arange(3), counts - 1]
        torch.testing.assert_close(encode_last(shape, p, items, counts), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_that_fraction_and_keeps_the_mean(rate):
    dropout = Dropout(rate, streams.keys(0, 1, torch.arange(50)), torch.arange(40).expand(50, -1))
    x = dropout(torch.ones(50, 40, 30), 3)
    assert ((x == 0).float().mean() - rate).abs() < 0.01
    assert (x.mean() - 1).abs() < 0.01
    assert set(x.unique().tolist()) == {0.0, x.max().item()}
    lanes = x[:, :, :28].reshape(-1, 4)  # numbers of one draw are as unlike as any
    assert torch.corrcoef(lanes.T)[0, 1:].abs().max() < 0.02


def test_what_is_dropped_depends_on_user_position_and_site_only():
    keys, position, ones = streams.keys(0, 1, torch.arange(4)), torch.arange(9).expand(4, -1), torch.ones(4, 9, 6)
    mask = Dropout(0.5, keys, position)(ones, 2)
    part = Dropout(0.5, keys[2:], position[2:, 5:])(ones[2:, 5:], 2)
    assert torch.equal(part, mask[2:, 5:])
    assert not torch.equal(Dropout(0.5, keys, position)(ones, 1), mask)
    assert torch.equal(Dropout(0.0, keys, position)(ones, 2), ones)


def test_dropout_keeps_the_network_causal_and_free_of_padding():
    p, (items, counts) = parameters(), windows([3, 1, 4, 1, 5, 9])
    position = torch.arange(6)[None]
    whole = encode(SHAPE, p, items, counts, Dropout(0.5, torch.tensor([7]), position))
    plain = encode(SHAPE, p, items, counts)
    assert (whole - plain).abs().max() > 0.1
    other = items.clone()
    other[0, 3] = 17
    changed = encode(SHAPE, p, other, counts, Dropout(0.5, torch.tensor([7]), position))
    torch.testing.assert_close(changed[:, :3], whole[:, :3])
    short = windows([2, 7, 3])[0]
    alone = encode(SHAPE, p, short, torch.tensor([3]), Dropout(0.5, torch.tensor([7]), position[:, :3]))
    wide = torch.cat([short, torch.zeros_like(short)], 1)
    padded = encode(SHAPE, p, wide, torch.tensor([3]), Dropout(0.5, torch.tensor([7]), position))
    torch.testing.assert_close(padded[:, :3], alone)


@pytest.mark.parametrize("block", [4, 64])
def test_attention_with_dropout_has_the_gradient_that_autograd_finds(monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(3, 2, 9, 4, generator=generator, requires_grad=True) for _ in range(3)]
    dropout, sites = Dropout(0.4, streams.keys(0, 1, torch.arange(3)), torch.arange(9).expand(3, -1)), range(2, 4)
    masks = dropout.masks(9, 12, sites)
    query, key, value = given
    weights = (query @ key.mT / 2).masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf).softmax(3)
    expected, found = (weights * masks) @ value, _Attention.apply(*given, dropout, 12, sites)
    torch.testing.assert_close(found, expected)
    above = torch.randn(expected.shape, generator=generator)
    for got, wanted in zip(*(torch.autograd.grad(each, given, above) for each in (found, expected)), strict=True):
        torch.testing.assert_close(got, wanted)
