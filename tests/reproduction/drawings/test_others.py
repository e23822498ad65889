"""Figures whose data is read from finished runs: the numbers are theirs."""

from itertools import pairwise

import pytest

from federec.reproduction.drawings import convergence, dimensions, privacy, radii, rankings, sparsity, views
from federec.reproduction.drawings.base import column, groups
from federec.reproduction.drawings.training import trained


def test_convergence_adds_up_seconds_and_bytes(request_):
    rows = convergence.data(request_)
    assert list(groups(rows, "method")) == [*convergence.METHODS]
    lines, history = groups(rows, "method")["fedmf"], trained(request_, "fedmf", engine="torch").history
    assert column(lines, "bytes")[-1] == sum(line["up_bytes"] + line["down_bytes"] for line in history)
    assert column(lines, "hr@10") == [line["test"]["hr@10"] for line in history]
    for name in ("bytes", "seconds"):
        assert all(a < b for a, b in pairwise(column(lines, name)))


def test_the_caption_of_convergence_names_the_first_round_near_the_best():
    values = (0.1, 0.48, 0.5, 0.49)
    rows = [
        {"method": "fedmf", "round": round_, "seconds": 1.0, "bytes": 1e6 * round_, "hr@10": value}
        for round_, value in enumerate(values, 1)
    ]
    assert "fedmf 2 (2.0 MB, best 50.0 %)" in convergence.caption(rows)


def test_views_are_those_of_the_result(request_):
    rows = views.data(request_)
    result = trained(request_, "pfedrec", protocol="paper").result["views"]
    assert {row["view"]: row["hr@10"] for row in rows[:3]} == {name: result[name]["hr@10"] for name in views.VIEWS}
    assert [row["protocol"] for row in rows] == ["paper"] * 3 + ["clean"] * 3


def test_the_caption_of_views_has_the_gain_of_own_rows_on_each_set():
    rows = [
        {"data": name, "protocol": protocol, "view": view, "hr@10": value, "ndcg@10": 0.0}
        for protocol, name, values in (
            ("paper", "one", (0.7, 0.6, 0.5)),
            ("paper", "two", (0.3, 0.2, 0.1)),
            ("clean", "one", (0.5, 0.6, 0.4)),
            ("clean", "two", (0.4, 0.3, 0.2)),
        )
        for view, value in zip(views.VIEWS, values, strict=True)
    ]
    said = views.caption(rows)
    assert "under `paper` by +10.0 on one, +10.0 on two; under `clean` by -10.0 on one, +10.0 on two." in said


@pytest.mark.thorough
def test_radii_vary_one_at_a_time(request_):
    rows = radii.data(request_)
    assert [(row["radius"], row["rho"]) for row in rows] == [(n, r) for n in radii.NAMES for r in radii.RADII]
    defaults = [row for row in rows if row["rho"] == radii.DEFAULT]
    assert defaults[0]["hr@10"] == defaults[1]["hr@10"] == trained(request_, "fedrecgel").test["sampled"]["hr@10"]


def test_dimensions_are_the_notes_of_the_rounds(request_):
    rows = [row for row in dimensions.data(request_) if row["run"] == "fedmf+plgc"]
    notes = [line["notes"] for line in trained(request_, "fedmf", ("plgc",)).history]
    ranks = [row["value"] for row in rows if row["quantity"] == dimensions.RANK]
    assert ranks == [note["items: effective rank"] for note in notes]
    values = [row["value"] for row in rows if row["quantity"] == dimensions.VALUE]
    assert values[0] == 1 and values == sorted(values, reverse=True) and len(values) == 32


def test_sparsity_counts_small_entries(request_):
    rows = sparsity.data(request_)
    assert [row["run"] for row in rows] == [name for name in sparsity.VARIANTS for _ in range(3)]
    for row in rows:
        fractions = [row["zero"], *(row[f"below {bound:g}"] for bound in sparsity.SMALL)]
        assert fractions == sorted(fractions) and 0 < fractions[-1] < 1
    history = trained(request_, "fedrap").history  # the same run: a file has no preset
    assert [row["up_bytes"] for row in rows[3:6]] == [line["up_bytes"] for line in history]


def test_rankings_count_the_bytes_up_to_the_best_round(request_):
    row = rankings.measured(request_, "fedmf")
    run = trained(request_, "fedmf")
    best = run.history[: run.result["best_round"]]
    assert row["bytes"] == sum(line["up_bytes"] + line["down_bytes"] for line in best) and row["rounds"] == len(best)
    assert row["full ndcg@10"] == run.test["full"]["ndcg@10"]
    assert rankings.measured(request_, "popularity")["bytes"] == 0


def test_the_caption_of_rankings_names_the_pairs_that_change_places():
    values = {"a": (0.6, 0.1), "b": (0.5, 0.2), "c": (0.4, 0.05)}
    rows = [{"method": name, "sampled hr@10": x, "full hr@10": y} for name, (x, y) in values.items()]
    assert "1 of 3 pairs of methods change places: a before b only against 99." in rankings.caption(rows)
    assert "0 of 1 pairs of methods change places." in rankings.caption(rows[1:])


@pytest.mark.thorough
def test_epsilon_is_that_of_a_devices_budget_over_all_rounds(request_):
    rows = privacy.data(request_)
    assert [row["run"] for row in rows] == ["noise"] * len(privacy.NOISE) + [privacy.CLIPPED, "popularity"]
    for row, noise in zip(rows, privacy.NOISE, strict=False):
        spent = row["rounds"] * 2 / noise**2  # zero-concentrated; the threat model has the formula
        assert row["epsilon"] == pytest.approx(spent + 2 * (spent * 6 * 2.302585) ** 0.5, rel=1e-5)


def test_the_caption_of_privacy_says_from_where_on_it_is_worth_it():
    def row(run, epsilon, value):
        return {"run": run, "noise": 0, "epsilon": epsilon, "rounds": 30, "full ndcg@10": value, "sampled hr@10": value}

    rows = [
        row("noise", 9e6, 0.05),
        row("noise", 90.0, 0.01),
        row(privacy.CLIPPED, 0, 0.06),
        row("popularity", 0, 0.04),
    ]
    said = privacy.caption(rows)
    assert "6.0 % without noise, 5.0 % at epsilon 9,000,000 and 1.0 % at epsilon 90;" in said
    assert "fedmf is ahead of popularity (4.0 %) from epsilon 9,000,000 on" in said
    assert "behind popularity (4.0 %) at every epsilon shown" in privacy.caption(rows[1:])
