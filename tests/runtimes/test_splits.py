"""Runs on splits with several held-out items a user, repeated pairs, cold users and cold items."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

import federec as fr
from federec.checks.engines import engines_agree
from federec.checks.runs import outcome
from federec.cohort.draw import Devices
from federec.data.interactions import Interactions
from federec.data.split import make_split
from federec.errors import UserError
from federec.evaluation.metrics import rank_metrics, user_metrics
from federec.federation.engine import fits
from federec.methods.registry import METHODS
from federec.runs.config import RunConfig
from federec.runtimes import local

NET = {"hidden": (7, 5, 3)}  # three layers always: kernels are compiled anew for every depth
SETTINGS = {"fedncf": NET, "fedrecgel": {**NET, "mlp_dim": 6, "epochs": 1}}
FUSED = (
    "pfedrec",
    "fedmf",
    "fedrap",
    "local-only",
    "fedncf",
    "fedrecgel",
    "fedrecon",
    "fednext",
    "fedpergnn",
    "metamf",
    "fedsasrec",
)
CENTRAL = ("sasrec",)
STOPPED = [("pfedrec", "time"), ("ials", "time"), ("fedmf", "ratio"), ("fedmf", "time:0.5,0.3,0.2")]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data():
    """Some pairs are repeated; users 25 to 29 and items 36 to 39 come up only at the end."""
    rng = np.random.default_rng(2)
    users, items = rng.integers(0, 25, 400), rng.integers(0, 36, 400)
    users[:25] = np.arange(25)
    users[360:], items[360:] = rng.integers(20, 30, 40), rng.integers(30, 40, 40)
    again = rng.integers(0, 400, 80)
    times = np.arange(400.0)
    return Interactions(
        name="late",
        users=np.concatenate([users, users[again]]).astype(np.int32),
        items=np.concatenate([items, items[again]]).astype(np.int32),
        user_ids=np.arange(30),
        item_ids=np.arange(40),
        times=np.concatenate([times, times[again] + 0.5]),
        ratings=rng.integers(1, 6, 480).astype(np.float32),
    )


@pytest.mark.parametrize(
    ("name", "engine"), [*((name, "torch") for name in METHODS), *((name, "fused") for name in (*FUSED, *CENTRAL))]
)
def test_every_method_trains_and_ranks_with_cold_users_and_items(small, data, name, engine):
    run = fr.train(small(name, **SETTINGS.get(name, {})), data, rounds=2, split="time", engine=engine)
    described = run.result["data"]
    assert described["split"].startswith("by global time: training before ")
    assert described["cold_users"] == 5 and described["cold_items"] > 0
    assert described["held_out"].keys() == {"valid", "test"} and described["users_not_evaluated"] > 0
    for kind in ("sampled", "full", "full_light", "full_cold_users", "full_cold_items"):
        assert all(math.isfinite(value) for value in run.test[kind].values())
    assert 0 <= run.test["full"]["ndcg@20"] <= 1
    for user in (29, 0):  # a cold one, and one who trained
        listed = run.recommend(user, k=5)
        known = set(data.items[data.users == user].tolist())
        assert len(listed) == 5 and not {row.item for row in listed} & known


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("rule", ["leave-one-out", "ratio"])
@pytest.mark.parametrize("name", FUSED)
def test_both_engines_agree_where_pairs_are_repeated_fused(small, data, name, rule, close):
    split = make_split(data, rule)
    assert len(split.distinct[1]) < len(split.train)
    devices = Devices.of(split, close)
    users = devices.ptr.diff().nonzero().flatten()
    engines_agree(small(name, **SETTINGS.get(name, {})), devices, users, range(1, 3), tolerance=1e-3)


@pytest.mark.parametrize(("name", "rule"), STOPPED)
def test_an_interrupted_run_ends_as_if_it_had_not_been(small, data, tmp_path, name, rule):
    given = {"rounds": 3, "split": rule, "seed": 5, "engine": "auto" if name == "ials" else "torch"}
    whole = fr.train(small(name), data, **given, out=tmp_path / "whole")

    def stop(line, rounds):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.train(small(name), data, **given, out=tmp_path / "run", on_round=stop)
    local.resume(tmp_path / "run", data)
    (lines, result, *_), (other_lines, other, *_) = (outcome(tmp_path / one) for one in ("whole", "run"))
    assert lines == other_lines and result["test"] == other["test"] and result["data"] == other["data"]
    again = fr.Run.load(tmp_path / "run", data)
    assert all(torch.equal(again.ranks[key], whole.ranks[key]) for key in whole.ranks)
    assert [row.item for row in again.recommend(28)] == [row.item for row in whole.recommend(28)]


def test_ranks_say_whose_they_are(small, data):
    run = fr.train(small("fedmf"), data, rounds=1, split="ratio")
    users, owner = run.ranks["users"], run.ranks["test owner"].long()
    split = make_split(data, "ratio")
    assert users.tolist() == split.evaluated.tolist()
    pairs = {(int(users[row]), rank) for row, rank in zip(owner, run.ranks["test full"].tolist(), strict=True)}
    assert len(pairs) <= len(split.test)
    assert rank_metrics(run.ranks["test full"], owner).items() <= run.test["full"].items()
    each = user_metrics(run.ranks["test full"], owner, len(users))["ndcg@10"]
    assert float(each.nanmean()) == pytest.approx(run.test["full"]["ndcg@10"])
    alone = fr.train(small("fedmf"), data, rounds=1)
    assert set(alone.ranks) == {
        *("users", "training items", "interactions", "recommended", "examples"),
        *(f"{part} {kind}" for part in ("valid", "test") for kind in ("sampled", "full")),
    }
    assert len(alone.ranks["users"]) == len(alone.ranks["test full"]) == alone.result["data"]["evaluated_users"]


def test_parts_belong_to_the_data_of_a_run(small, data, tmp_path):
    """A run on given parts is not continued on others."""
    parts = np.random.default_rng(0).choice([0, 1, 2], len(data), p=[0.6, 0.2, 0.2]).astype(np.int8)
    given = replace(data, parts=parts)
    run = fr.train(small("fedmf"), given, rounds=1, out=tmp_path / "run")
    assert run.result["data"]["split"] == "given by the data"
    fr.Run.load(tmp_path / "run", given)
    with pytest.raises(UserError, match="has changed since this run was trained on it"):
        fr.Run.load(tmp_path / "run", data)


@pytest.mark.parametrize("name", ["ease", "ials", "fedease", "fedals", "fcf"])
def test_the_closed_forms_count_a_repeated_pair_once(data, name):
    split = make_split(data, "ratio")
    repeated, merged = (
        parted(data, [history, *((part.ptr, part.items) for part in (split.valid, split.test))])
        for history in ((split.ptr, split.train), split.distinct[:2])
    )
    assert len(merged) < len(repeated)
    one, other = (fr.train(name, some, rounds=2) for some in (repeated, merged))
    assert one.ranks["test full"].tolist() == other.ranks["test full"].tolist()
    assert one.result["communication"] == other.result["communication"]


def parted(data, parts):
    """The data with these items of its users in each part, oldest first."""
    users = np.concatenate([np.repeat(np.arange(30), np.diff(ptr)) for ptr, _ in parts]).astype(np.int32)
    items = np.concatenate([items for _, items in parts])
    which = np.repeat(np.arange(3), [len(items) for _, items in parts]).astype(np.int8)
    times = np.arange(float(len(users)))
    return Interactions("parted", users, items, data.user_ids, data.item_ids, times, parts=which)


def test_all_methods_with_kernels_are_tested(small):
    assert {name for name in METHODS if fits(small(name).fused_form(40), "cpu")} == {*FUSED, *CENTRAL}


def test_summed_noise_plays_with_cold_users_and_after_a_stop(small, data, tmp_path):
    method, given = small("fednext-projected", ("ldp",)), {"split": "time", "seed": 5, "rounds": 3}
    whole = fr.train(method, data, **given, engine="fused", out=tmp_path / "whole")

    def stop(line, rounds):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.train(method, data, **given, engine="fused", out=tmp_path / "run", on_round=stop)
    local.resume(tmp_path / "run", data)
    again = fr.Run.load(tmp_path / "run", data)
    assert all(torch.equal(again.ranks[key], whole.ranks[key]) for key in whole.ranks)
    slow = fr.train(method, data, **given, engine="torch")
    assert whole.test["full"] == pytest.approx(slow.test["full"], abs=0.1)  # one user of ten more or less


def test_a_run_refuses_a_rule_that_it_does_not_know(small, data):
    with pytest.raises(UserError, match="unknown split 'tme' - did you mean 'time'"):
        fr.train(small("fedmf"), data, split="tme")
    with pytest.raises(UserError, match="not three fractions"):
        RunConfig.checked(split="ratio:1")
