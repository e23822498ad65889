import numpy as np
import pytest
import torch

from federec.federation.scoring import score_global
from federec.reproduction.drawings.embeddings import ADDITIVE, METHODS, additive_data, data, purity, seen
from federec.reproduction.drawings.training import trained


def test_purity_is_1_where_the_users_items_are_apart_and_chance_where_they_are_not():
    items = torch.arange(12)
    apart = torch.cat([torch.tensor([[1.0, 0.0]]).expand(12, 2), torch.tensor([[0.0, 1.0]]).expand(88, 2)])
    assert purity(apart, items) == 1
    mixed = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    assert purity(mixed, torch.arange(600)) == pytest.approx(0.2, abs=0.03)


def test_a_device_that_tunes_its_rows_sees_its_own(request_):
    run = trained(request_, "pfedrec", dim=4)
    table, items = seen(run)
    changed = (table != run.point.best_state.shared["items"]).any(1)
    assert changed[items].all()
    split = run.config.split_of(run.data)
    histories = [set(part.tolist()) for part in np.split(split.train, split.ptr[1:-1])]
    user = histories.index(set(items.tolist()))
    # Its scores are linear in these rows, and not in the server's.
    scores = run.score([run.data.user_ids[user]])[0]
    for rows, linear in ((table, True), (run.point.best_state.shared["items"], False)):
        inputs = np.column_stack([rows.numpy(), np.ones(len(rows))])
        fitted = inputs @ np.linalg.lstsq(inputs, scores)[0]
        assert np.allclose(fitted, scores, atol=1e-3) == linear


def test_other_devices_see_the_servers_rows(request_):
    run = trained(request_, "fedmf")
    assert torch.equal(seen(run)[0], run.point.best_state.shared["items"])


def test_every_item_has_a_place_in_every_panel(request_):
    pytest.importorskip("sklearn", reason="pip install federec[results]")
    items = trained(request_, "fedrap").data.n_items
    for rows, panels in ((data(request_), METHODS), (additive_data(request_), ADDITIVE)):
        assert [row["item"] for row in rows] == [*range(items)] * len(panels)
        assert list(dict.fromkeys(row["panel"] for row in rows)) == [*panels]
        positives = [{row["item"] for row in rows if row["panel"] == name and row["positive"]} for name in panels]
        assert positives[0] and all(one == positives[0] for one in positives)


def test_the_added_rows_are_those_that_fedrap_scores_with(request_):
    run = trained(request_, "fedrap")
    state = run.point.best_state
    users, items = torch.tensor([3]), torch.arange(run.data.n_items)[None]
    own = state.stores["own"].take(users, torch.zeros(1, 1, dtype=torch.int64), items)
    p = {name: value[users] for name, value in state.private.items()}
    logits = ((own + state.shared["common"]) @ p["score.0.weight"]).squeeze(2) + p["score.0.bias"]
    torch.testing.assert_close(logits, score_global(run.method, state, users, items))
