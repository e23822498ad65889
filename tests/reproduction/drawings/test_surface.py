import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from federec.federation.scoring import score_global
from federec.reproduction.drawings.surface import METHODS, caption, direction, normalised, rise, sampled, surface
from federec.reproduction.drawings.training import trained


@pytest.mark.parametrize("name", METHODS)
def test_the_middle_of_the_surface_is_the_loss_of_the_model_itself(name, request_):
    run = trained(request_, name)
    model, users, items = sampled(run, devices=5, samples=7)
    assert users.shape == (5,) and items.shape == (5, 7)
    scores = score_global(run.method, run.point.best_state, users, items)
    losses = binary_cross_entropy_with_logits(scores, model.labels, reduction="none")
    assert model.loss(model.values) == pytest.approx(float(losses[model.real].mean()), rel=1e-5)
    whole, *_ = sampled(run)
    points = {(x, y): loss for x, y, loss in surface(run, points=3)}
    assert len(points) == 9 and points[0, 0] == pytest.approx(whole.loss(whole.values))
    assert all(loss > 0 for loss in points.values()) and len(set(points.values())) == 9


def test_a_filter_moves_by_its_own_length():
    values = torch.rand(6, 4) + 0.1
    norm = torch.linalg.vector_norm
    for by_row, dim in ((True, 1), (False, 0)):
        moved = normalised(values, torch.Generator().manual_seed(0), by_row)
        torch.testing.assert_close(norm(moved, dim=dim), norm(values, dim=dim))
    assert not normalised(values[0], torch.Generator(), by_row=False).any()


def test_an_item_has_one_direction_on_all_devices(request_):
    run = trained(request_, "fedncf")
    users, items = torch.tensor([0, 1]), torch.tensor([[3, 4], [4, 3]])
    moved = direction(run, users, items, 1)
    torch.testing.assert_close(moved["items"][0], moved["items"][1].flip(0))
    assert not torch.equal(moved["user"], direction(run, users, items, 2)["user"])
    again = direction(run, users, items, 1)
    assert all(torch.equal(moved[name], again[name]) for name in moved)


def test_the_caption_has_the_rise_of_both_methods_on_each_set():
    steps = (-0.5, 0.0, 0.5)
    rows = [
        {"data": data, "method": name, "x": x, "y": y, "loss": start + curve * (x * x + y * y)}
        for data in ("one", "two")
        for name, start, curve in (("fedrecgel", 0.5, 0.4), ("fedncf", 0.2, 4.0 if data == "one" else 0.0))
        for x in steps
        for y in steps
    ]
    assert rise(rows[:9]) == pytest.approx((0.5, 0.4 * 0.25 * 4 / 5))
    said = caption(rows)
    assert "by 0.080 against 0.800 on one (at the model itself 0.500 against 0.200), 0.080 against 0.000 on two" in said
