"""Runs side by side: which share a row, which are compared, and by how much they differ."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import federec as fr
from federec.reproduction.compare import METRICS
from federec.reproduction.statistics import bootstrap, gains


@pytest.fixture(scope="module")
def data(random_split):
    return random_split(users=30, items=60, least=6, most=12).data


@pytest.fixture(scope="module")
def runs(data):
    """Two methods with two seeds each."""
    return [
        fr.train(method, data, rounds=2, seed=seed) for method in (fr.FedMF(dim=4), "popularity") for seed in (0, 1)
    ]


def ranked(run, ranks, users=None):
    """The run, as if it had these test ranks."""
    known = {"test sampled": torch.tensor(ranks), "test full": torch.tensor(ranks)}
    return replace(run, ranks=known if users is None else known | {"users": torch.tensor(users)})


def test_runs_that_differ_only_by_seed_are_a_row(runs):
    records = fr.compare(runs).records()
    assert [(record["method"], record["seeds"]) for record in records] == [("fedmf", 2), ("popularity", 2)]
    for record, pair in zip(records, (runs[:2], runs[2:]), strict=True):
        for metric in METRICS:
            ranking, name = metric.split(".")
            values = [run.test[ranking][name] for run in pair]
            assert record[metric] == pytest.approx(np.mean(values))
            assert record[f"{metric} std"] == pytest.approx(np.std(values, ddof=1))


@pytest.mark.parametrize("metric", ["full.ndcg@10", "sampled.hr@10"])
def test_the_difference_is_that_of_the_means_and_its_interval_is_paired(runs, metric):
    ranking, name = metric.split(".")
    baseline, other = fr.compare(runs, metric=metric).records()
    assert (baseline["difference"], baseline["verdict"]) == (None, "baseline")
    assert other["difference"] == pytest.approx(other[metric] - baseline[metric])
    assert other["low"] <= other["difference"] <= other["high"]
    ranks = [np.stack([run.ranks[f"test {ranking}"].numpy() for run in pair]) for pair in (runs[2:], runs[:2])]
    paired = gains(ranks[0], name) - gains(ranks[1], name)
    assert (other["difference"], other["low"], other["high"]) == pytest.approx(tuple(bootstrap(list(paired))))
    mirrored, _ = fr.compare(runs, baseline="popularity", metric=metric).records()
    assert mirrored["difference"] == pytest.approx(-other["difference"])


def test_a_difference_over_fewer_seeds_than_the_means_says_so(runs):
    comparison = fr.compare([*runs[:2], runs[3]])
    baseline, other = comparison.records()
    assert (baseline["seeds"], other["seeds"], other["common_seeds"]) == (2, 1, 1)
    assert baseline["common_seeds"] is None
    assert other["difference"] == pytest.approx(runs[3].test["full"]["ndcg@10"] - runs[1].test["full"]["ndcg@10"])
    assert "] (common seeds: 1)" in repr(comparison)
    assert fr.compare(runs).records()[1]["common_seeds"] == 2 and "(common seeds" not in repr(fr.compare(runs))


def test_folders_runs_and_labels_give_the_same(runs, tmp_path):
    paths = [run.save(tmp_path / str(number)) for number, run in enumerate(runs)]
    expected = fr.compare(runs).records()
    assert fr.compare(sorted(tmp_path.glob("*"))).records() == expected
    assert fr.compare([str(paths[0]), runs[1], *paths[2:]], baseline=paths[0]).records() == expected
    named = fr.compare({"mine": paths[:2], "theirs": runs[2:]}, baseline="mine").records()
    assert [record["method"] for record in named] == ["mine", "theirs"]
    assert named[1]["difference"] == expected[1]["difference"]


def test_other_protocols_data_and_splits_are_never_compared(runs, data, random_split):
    leaking = fr.train("popularity", data, rounds=2, protocol="paper")
    elsewhere = fr.train("popularity", random_split(users=30, items=60, least=6, most=12, seed=5).data, rounds=2)
    by_time = replace(runs[2], result=runs[2].result | {"data": runs[2].result["data"] | {"split": "by global time"}})
    for other in (leaking, elsewhere, by_time):
        records = fr.compare([runs[0], other]).records()
        assert [record["verdict"] for record in records] == ["baseline", "baseline"]
        assert [record["difference"] for record in records] == [None, None]
        refused = fr.compare({"a": runs[0], "b": other}, baseline="a").records()[1]
        assert refused["difference"] is None and refused["verdict"].startswith("not compared")


def test_runs_without_a_common_seed_or_the_same_users_are_not_paired(runs):
    def verdict(*pair):
        return fr.compare(pair).records()[1]["verdict"]

    assert verdict(runs[0], runs[3]) == "not paired: no seed in common"
    old, new = ranked(runs[0], [0, 5]), ranked(runs[2], [0, 5], [1, 3])
    assert verdict(ranked(runs[0], [0, 5], [1, 2]), new) == "not paired: other users were evaluated"
    # A run of an older version does not say whom it evaluated.
    assert verdict(old, new) == "no clear difference; seeds were not varied"
    assert verdict(ranked(runs[0], [0, 5, 6]), new) == "not paired: other users were evaluated"
    assert verdict(old, replace(runs[2], ranks={})) == "not paired: only sums over users are known"


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [(1, "worse; seeds were not varied"), (2, "worse; only 2 seeds"), (3, "worse")],
)
def test_a_clear_difference_is_called_so_and_few_seeds_are_named(runs, seeds, verdict):
    good = [seeded(ranked(runs[0], [0] * 100), seed) for seed in range(seeds)]
    bad = [seeded(ranked(runs[2], [0] * 20 + [50] * 80), seed) for seed in range(seeds)]
    comparison = fr.compare([*good, *bad], metric="full.hr@10")
    found = comparison.records()[1]
    assert found["verdict"] == verdict and found["difference"] == pytest.approx(-0.8)
    assert -0.9 < found["low"] < -0.8 < found["high"] < -0.7
    assert verdict in repr(comparison) and "fewer than 3 common seeds" in repr(comparison)


def seeded(run, seed):
    return replace(run, result=run.result | {"seed": seed})


def test_several_held_out_items_count_as_one_user(runs):
    several = {"test sampled": torch.tensor([0, -1, 3]), "test full": torch.tensor([0, 1, 30])}
    several |= {"test owner": torch.tensor([0, 0, 2]), "users": torch.tensor([4, 5, 6])}
    a, b = replace(runs[0], ranks=several), replace(runs[2], ranks=several | {"test full": torch.tensor([40, 50, 30])})
    assert fr.compare([a, b], metric="full.hr@10").records()[1]["difference"] == pytest.approx(-0.5)  # of two users


def test_every_form_has_the_same_rows(runs):
    comparison = fr.compare(runs)
    records = comparison.records()
    assert [row["method"] for row in csv.DictReader(io.StringIO(comparison.csv()))] == ["fedmf", "popularity"]
    assert json.loads(comparison.json()) == {"metric": "full.ndcg@10", "baseline": None, "rows": records}
    lines = comparison.latex().splitlines()
    assert sum(line.endswith(r"\\") for line in lines) == 3 and r"full ndcg@10" in lines[2]
    assert all("_" not in line.replace(r"\_", "") for line in lines)
    for text in (repr(comparison), comparison._repr_html_()):
        assert "; only 2 seeds" in text
        assert f"{records[0]['full.ndcg@10']:.4f} ± " in text
    assert comparison._repr_html_().count("<tr>") == 3


def test_labels_are_shown_unchanged(runs):
    html = fr.compare({"<b>a_b": runs[0]})._repr_html_()
    assert "&lt;b&gt;a_b" in html and "<b>" not in html
    assert r"<b>a\_b" in fr.compare({"<b>a_b": runs[0]}).latex()


def test_the_plot_has_a_mark_for_every_row(runs):
    pytest.importorskip("matplotlib", reason="pip install federec[results]").use("Agg")
    axes = fr.compare(runs).plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["popularity", "fedmf"]
    assert fr.compare(runs).plot(axes) is axes


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda runs: fr.compare([]), "there is no run to compare"),
        (lambda runs: fr.compare(5), "5 is no run"),
        (lambda runs: fr.compare("nowhere"), "nowhere: is not a run folder"),
        (lambda runs: fr.compare({"a": runs}), "the runs of 'a' differ in more than the seed: fedmf; popularity"),
        (lambda runs: fr.compare(runs, baseline="fedm"), "no compared run is 'fedm' - did you mean 'fedmf'"),
        (lambda runs: fr.compare(runs, metric="ndcg"), "unknown metric 'ndcg'; write it like full.ndcg@10"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(runs, call, words):
    with pytest.raises(fr.UserError) as refused:
        call(runs)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_seeds_with_different_numbers_of_users_have_an_interval():
    mean, low, high = bootstrap([np.array([0.0, 1.0]), np.array([1.0, 1.0, 1.0])])
    assert mean == 0.75 and 0 <= low < mean < high <= 1
