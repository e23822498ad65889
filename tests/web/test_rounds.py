"""The page's local round against the method itself, in torch: same samples, values to 1e-5."""

import numpy as np
import pytest
import torch
from tests.web.node import needs_node, node

from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.federation.device import stack
from federec.federation.state import State
from federec.methods.forms import LinearScore
from federec.plugins.registry import build
from federec.web.plans import form_of, plan_of

SEED = 7
LINEAR = """return devices.map(({ plan, table, weight, positives, round, number }) => {
  const key = streams.streamKey(seed, round, number);
  return linear.linearRound(plan, floats(table), dim, floats(weight), positives, draw.distinct(positives), key);
});"""
ADDITIVE = """return devices.map(({ plan, table, own, weight, positives, round, number }) => {
  const key = streams.streamKey(seed, round, number);
  const ownRows = (ids) => rows.gather(floats(own), ids, dim);
  const closed = draw.distinct(positives);
  return additive.additiveRound(plan, floats(table), ownRows, dim, floats(weight), positives, closed, key);
});"""


def python_round(method, devices, state, user, round_):
    """What a device does in torch: the cohort before and after it has learned."""
    cohort = stack(method, state, devices, torch.tensor([user]), SEED, round_)
    before = {name: table.clone() for name, table in cohort.tables.items()}
    method.fit(cohort)
    return cohort, before


def close(actual, expected, tolerance=1e-5):
    actual, expected = torch.tensor(actual), expected.flatten()
    assert actual.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def histories(split_of, items, lengths):
    random = np.random.default_rng(4)
    return Devices.of(split_of([random.permutation(items)[: n + 2] for n in lengths], items), False)


@needs_node
@pytest.mark.parametrize(
    ("name", "plugins", "settings", "items"),
    [
        ("pfedrec", (), {}, 400),  # the paper's own settings
        ("pfedrec", (), {"dim": 8, "batch": 16, "epochs": 3, "item_lr_factor": 0.05}, 60),
        ("fedmf", (), {}, 400),
        ("fedmf", ("dualper",), {"dim": 8, "batch": 16, "epochs": 3, "item_lr_factor": 0.05}, 60),
        ("fedrecon", (), {"dim": 8, "batch": 16, "epochs": 2}, 60),
        ("fedrecon", (), {"dim": 8, "batch": 16, "disjoint": False}, 60),
        ("fedrap", (), {"dim": 8}, 60),
        ("fedrap", (), {"dim": 8, "batch": 16, "norm": "l2", "weight_decay": 1e-4, "v1": 0.01}, 60),
        ("fedrap", (), {"dim": 8, "parts": "common"}, 60),
        ("fedrap", (), {"dim": 8, "parts": "own"}, 60),
    ],
    ids=str,
)
def test_a_round_in_the_page_is_the_methods_round(split_of, name, plugins, settings, items):
    method = build(name, plugins, settings)
    devices = histories(split_of, items, (5, 20, items - 10 if items < 100 else 40))
    form = form_of(method, items)
    state, linear = State.start(method, items, len(devices), 1), isinstance(form, LinearScore)
    nothing = torch.zeros(items, method.dim)
    tables = {"table": state.shared.get((form.table if linear else form.common) or "", nothing)}
    if not linear:
        tables["own"] = state.stores[form.own].start if form.own else nothing
    players = ((0, 1), (1, 3), (2, 12))
    given = []
    for user, round_ in players:
        positives = devices.train[devices.ptr[user] : devices.ptr[user + 1]]
        weight = torch.cat([state.private[part][user].flatten() for part in (form.weight, form.bias) if part])
        plan = plan_of(method, form, round_)
        given.append({"plan": plan, "weight": weight, "positives": positives, "round": round_, "number": user} | tables)
    modules, body = (["linear"], LINEAR) if linear else (["rows", "additive"], ADDITIVE)
    found = node(["streams", "draw", *modules], body, devices=given, seed=SEED, dim=method.dim)
    parts = {"rows": form.table} if linear else {"common": form.common, "own": form.own}
    for (user, round_), got in zip(players, found, strict=True):
        cohort, before = python_round(method, devices, state, user, round_)
        assert got["ids"] == cohort.rows.ids.tolist()
        for kind, name in parts.items():
            if name is not None:
                close(got[kind], cohort.tables[name])
        if next(iter(parts.values())):
            assert torch.equal(torch.tensor(got["received"]), before[next(iter(parts.values()))].flatten())
        close(got["weight"], torch.cat([cohort.params[part].flatten() for part in (form.weight, form.bias) if part]))


@pytest.mark.parametrize(
    ("name", "plugins", "settings", "remedy"),
    [
        ("fedncf", (), {}, "train one of pfedrec, fedmf"),
        ("pfedrec", (), {"hidden": (4,)}, "train one of pfedrec"),
        ("popularity", (), {}, "train one of pfedrec"),
        ("local-only", (), {}, "shares nothing"),
        ("fedmf", ("plgc",), {}, r"'fedmf\+plgc'; train it without plgc"),
        ("fedrap", ("sam",), {}, "without plgc, sam and recency"),
    ],
)
def test_what_the_page_cannot_play_is_refused(name, plugins, settings, remedy):
    with pytest.raises(UserError, match=remedy):
        form_of(build(name, plugins, settings), 50)
