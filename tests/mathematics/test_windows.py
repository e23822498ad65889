import pytest
import torch
from tests.mathematics.test_transformer import SHAPE, parameters
from tests.mathematics.test_transformer import windows as padded
from torch.nn.functional import cross_entropy

from federec import streams
from federec.mathematics import windows as module
from federec.mathematics.transformer import encode
from federec.mathematics.windows import Windows, gradient, gradients, outputs

HISTORIES = [[*range(15)], [4], [3, 1, 4], [5, 6, 7, 8, 9, 10, 11], [19, 18, 17, 16, 15, 14, 13, 12]]


def test_a_long_history_is_cut_from_its_end():
    windows = Windows.of(*padded(*HISTORIES), window=6)
    found = [
        (owner, first, items[:count], targets[:count])
        for owner, first, items, targets, count in zip(
            windows.owner.tolist(),
            windows.first.tolist(),
            windows.items.tolist(),
            windows.targets.tolist(),
            windows.counts.tolist(),
            strict=True,
        )
    ]
    assert found == [
        (0, 8, [8, 9, 10, 11, 12, 13], [9, 10, 11, 12, 13, 14]),
        (0, 2, [2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7, 8]),
        (3, 0, [5, 6, 7, 8, 9, 10], [6, 7, 8, 9, 10, 11]),
        (4, 1, [18, 17, 16, 15, 14, 13], [17, 16, 15, 14, 13, 12]),
        (0, 0, [0, 1], [1, 2]),
        (2, 0, [3, 1], [1, 4]),
        (4, 0, [19], [18]),
    ]
    assert int((windows.targets >= 0).sum()) == sum(len(history) - 1 for history in HISTORIES)


def test_histories_without_a_next_item_have_no_windows():
    for items, counts in ((torch.zeros(2, 1), [1, 0]), (torch.zeros(2, 0), [0, 0]), (torch.zeros(0, 3), [])):
        windows = Windows.of(items.long(), torch.tensor(counts, dtype=torch.long), 5)
        losses, found = gradient(SHAPE, parameters(), windows, 0.1, torch.zeros(len(counts), dtype=torch.long))
        assert losses.tolist() == [0.0] * len(counts)
        assert not any(value.any() for value in found.values())


@pytest.mark.parametrize("positions", [1, 14, 10_000])
def test_the_gradient_is_autograds_whatever_is_computed_together(monkeypatch, positions):
    monkeypatch.setattr(module, "_POSITIONS", positions)
    monkeypatch.setattr(module, "_LOGITS", 3 * positions)
    p, windows = parameters(), Windows.of(*padded(*HISTORIES), SHAPE.window)
    losses, found = gradient(SHAPE, p, windows, 0.0, streams.keys(0, 1, torch.arange(5)))
    leaves = {name: value.clone().requires_grad_() for name, value in p.items()}
    logits = encode(SHAPE, leaves, windows.items, windows.counts) @ leaves["items"].T + leaves["item_bias"]
    each = cross_entropy(logits.mT, windows.targets, ignore_index=-1, reduction="none").sum(1)
    torch.testing.assert_close(losses, torch.zeros(5).index_add(0, windows.owner, each.detach()), rtol=1e-4, atol=1e-4)
    for name, expected in zip(leaves, torch.autograd.grad(each.sum(), [*leaves.values()]), strict=True):
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", [1, 60, 10_000])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_gradients_are_those_of_each_history_alone(monkeypatch, positions, rate):
    """Each at its own parameters, whatever is computed together."""
    monkeypatch.setattr(module, "_LOGITS", 20 * positions)
    each = [parameters(seed=seed) for seed in range(5)]
    stacked = {name: torch.stack([p[name] for p in each]) for name in each[0]}
    (items, counts), keys = padded(*HISTORIES), streams.keys(0, 1, torch.arange(5))
    losses, found = gradients(SHAPE, stacked, Windows.of(items, counts, 6), rate, keys)
    for row, p in enumerate(each):
        one = slice(row, row + 1)
        loss, expected = gradient(SHAPE, p, Windows.of(items[one], counts[one], 6), rate, keys[one])
        torch.testing.assert_close(losses[one], loss, rtol=1e-4, atol=1e-4)
        for name, value in expected.items():
            torch.testing.assert_close(found[name][row], value, rtol=1e-4, atol=1e-4)


def test_gradients_at_the_parameters_of_all_are_those_at_copies_of_them():
    p, (items, counts), keys = parameters(), padded(*HISTORIES), streams.keys(0, 1, torch.arange(5))
    expanded = {name: value.expand(5, *value.shape) for name, value in p.items()}
    copies = {name: value.clone() for name, value in expanded.items()}
    windows = Windows.of(items, counts, 6)
    losses, found = gradients(SHAPE, expanded, windows, 0.5, keys)
    others, expected = gradients(SHAPE, copies, windows, 0.5, keys)
    torch.testing.assert_close(losses, others)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_dropout_is_the_same_whatever_is_computed_together(monkeypatch):
    p, windows, keys = parameters(), Windows.of(*padded(*HISTORIES), 6), streams.keys(0, 1, torch.arange(5))
    together, found = gradient(SHAPE, p, windows, 0.5, keys)
    plain, _ = gradient(SHAPE, p, windows, 0.0, keys)
    assert (together[[0, 2, 3, 4]] - plain[[0, 2, 3, 4]]).abs().min() > 1e-3
    monkeypatch.setattr(module, "_POSITIONS", 1)
    apart, others = gradient(SHAPE, p, windows, 0.5, keys)
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-4)
    for name, value in found.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", [1, 10_000])
def test_outputs_are_of_the_newest_items(monkeypatch, positions):
    monkeypatch.setattr(module, "_POSITIONS", positions)
    p, (items, counts) = parameters(), padded(*HISTORIES, [])
    found = outputs(SHAPE, p, items, counts)
    for row, history in enumerate(HISTORIES):
        newest = torch.tensor([history[-SHAPE.window :]])
        expected = encode(SHAPE, p, newest, torch.tensor([newest.shape[1]]))[0, -1]
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)
    assert not found[-1].any()
    assert outputs(SHAPE, p, items[:0, :0], counts[:0]).shape == (0, 8)
    assert not outputs(SHAPE, p, items[:2, :0], counts[:2] * 0).any()
