import copy
import re

import pytest

from federec.reporting.tables import channel_text, compare_table, items_rows, items_table, run_table, summary_table
from federec.runs.recommendation import Recommendation


def result(method="pfedrec", protocol="clean", seed=0, value=0.5, data="tastes", sha="a" * 64, users=9, **config):
    metrics = {"hr@10": value, "ndcg@10": value / 2, "mrr@10": value / 4}
    kinds = dict.fromkeys(("sampled", "full", "sampled_light", "full_light"), metrics)
    settings = {"lr": 0.1, "dim": 32} | config.pop("settings", {})
    config = {"ties": "random" if protocol == "clean" else "file"} | config
    made = {
        "method": method,
        "plugins": config.pop("plugins", []),
        "protocol": protocol,
        "seed": seed,
        "rounds": config.pop("rounds", 10),
        "best_round": 1,
        "data": {"name": data, "users": users, "items": 9, "interactions": 99, "sha256": sha},
        "valid": kinds,
        "test": kinds,
        "views": {},
        "seconds": {"total": 1.0, "per_round": 0.25},
        "communication": {"up_bytes_per_device_round": config.pop("up", 1500.0)},
        "machine": {"cpu": config.pop("cpu", "a chip"), "threads": 1, "cores": 2},
        "engine": {"used": config.pop("engine", "torch"), "reason": "why"},
        "config": {"settings": settings, "participation": 1.0, "device": "cpu"} | config,
    }
    return copy.deepcopy(made)


def test_runs_with_ties_in_another_order_have_a_row_of_their_own(rows):
    old = result()
    del old["config"]["ties"]  # as in results of older versions
    assert [line[1] for line in rows(result(seed=1), old)[1]] == ["pfedrec", "ties=file"]


@pytest.fixture
def rows(capsys):
    """The table of these runs: its header and its rows as words, the lines of deviations apart."""

    def show(*results):
        compare_table(list(results))
        lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith("do not compare the seconds")]
        rule = next(i for i, line in enumerate(lines) if "──" in line)
        return lines[:rule], [line.split() for line in lines[rule + 1 :]]

    return show


def test_seeds_are_averaged(rows):
    _, body = rows(result(seed=0, value=0.5), result(seed=1, value=0.6), result(seed=2, value=0.7))
    assert body == [
        ["tastes", "pfedrec", "3", "0.3000", "0.6000", "0.3000", "0.6000", "0.25", "1.5"],
        ["±.0500", "±.1000", "±.0500", "±.1000"],
    ]


@pytest.mark.parametrize("other", [{"engine": "fused"}, {"cpu": "another chip"}, {"device": "cuda"}])
def test_seconds_of_several_machines_or_engines_come_with_a_warning(capsys, other):
    compare_table([result("fedmf"), result(**other)])
    assert "do not compare the seconds: the runs were made " in capsys.readouterr().out
    compare_table([result("fedmf"), result()])
    assert "do not compare" not in capsys.readouterr().out


def test_a_seed_that_comes_twice_counts_once(rows):
    _, body = rows(result(seed=0), result(seed=0))
    assert body == [["tastes", "pfedrec", "1", "0.2500", "0.5000", "0.2500", "0.5000", "0.25", "1.5"]]


def test_protocols_have_columns_of_their_own(rows):
    header, body = rows(result(value=0.2), result(value=0.8, protocol="paper"), result("ials", value=0.4, up=None))
    assert [line.split() for line in header] == [
        ["clean"] * 4 + ["paper"] * 4,
        ["clean", *["full"] * 2, *["sampled"] * 2, "paper", *["full"] * 2, *["sampled"] * 2, "s", "a", "kB"],
        ["data", "method", *["seeds", *["ndcg@10", "hr@10"] * 2] * 2, "round", "up"],
    ]
    assert body[0][2:12] == ["1", *["0.1000", "0.2000"] * 2, "1", *["0.4000", "0.8000"] * 2]
    assert body[1] == ["tastes", "ials", "1", "0.2000", "0.4000", "0.2000", "0.4000", "0.25"]
    assert max(map(len, header)) <= 120


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({"settings": {"lr": 0.1}}, {"settings": {"lr": 0.2}}, ("lr=0.1", "lr=0.2")),
        ({"rounds": 5}, {"rounds": 9}, ("rounds=5", "rounds=9")),
        ({"participation": 0.5}, {"participation": 1.0}, ("participation=0.5", "participation=1.0")),
        ({"k_core": 5, "users": 4}, {}, ("k_core=5", "tastes")),
        ({"device": "cuda"}, {}, ("device=cuda", "device=cpu")),
        ({"plugins": ["dualper"]}, {}, ("pfedrec+dualper", "pfedrec")),
    ],
)
def test_runs_that_differ_have_rows_that_say_so(rows, one, other, says):
    _, body = rows(result(seed=0, **one), result(seed=1, **other))
    assert len(body) == 2
    assert all(word in row for word, row in zip(says, body, strict=True))
    assert all("±" not in word for row in body for word in row)


@pytest.mark.parametrize("other", [{"data": "ml-100k"}, {"sha": "b" * 64}, {"users": 8}])
def test_different_data_is_never_averaged(rows, other):
    _, body = rows(result(seed=0), result(seed=1, **other))
    assert [row[-7] for row in body] == ["1", "1"]
    if "sha" in other:
        assert [row[1] for row in body] == ["sha256=aaaaaaaa", "sha256=bbbbbbbb"]


def test_names_are_shown_as_they_are(capsys):
    run_table(result(data="[b]:smile:.csv"))
    items_table(items_rows([Recommendation("[/i]", 1.0, "Heat [1995]")]))
    summary_table({"some_name": "[x]", "nothing": None, "many": 12345, "parts": {"a": [1, 2]}})
    said = capsys.readouterr().out
    for words in ("[b]:smile:.csv", "[/i]", "Heat [1995]", "[x]", "none", "12,345", "a 1 .. 2"):
        assert words in said


def test_the_ranking_of_all_items_comes_first_and_what_is_sampled_says_so(capsys):
    one = result(value=0.5)
    one["test"] = {"full": {"ndcg@10": 0.1}, "sampled": {"ndcg@10": 0.9}, "full_cold_users": {"ndcg@10": 0.2}}
    one["data"] |= {"split": "last item by time", "items": 100}
    run_table(one)
    said = capsys.readouterr().out
    rows = [line.split("  ")[0].strip() + " " + line.split()[-3] for line in said.splitlines() if "0." in line][:3]
    assert rows == ["test, against all items 0.1000", " 0.2000", "test, sampled: against 99 items 0.9000"]
    assert "held out: last item by time\n" in said
    one["data"]["items"] = 99  # with the held-out one
    run_table(one)
    assert "test, sampled: against fewer than 99 items" in capsys.readouterr().out


def test_titles_have_a_column_only_where_there_are_any(capsys):
    for title in ("Heat", ""):
        items_table(items_rows([Recommendation(7, 1.0, title)]))
        assert ("title" in capsys.readouterr().out) == bool(title)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(monkeypatch, capsys, width):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    both = [result(seed=seed, protocol=p, settings={"lr": 0.1 * seed}) for seed in (1, 2) for p in ("clean", "paper")]
    compare_table(both)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("──" in line for line in lines) == (1 if width == 120 else 2)
    assert sum(line.count("0.5000") for line in lines) == 8, "no number is broken"


def test_the_channel_is_written_as_on_the_command_line():
    stages = [{"stage": "clip", "norm": 1.0}, {"stage": "dense"}, {"stage": "quantise", "bits": 8}]
    assert channel_text(stages) == "clip:norm=1.0 -> dense -> quantise:bits=8"
    assert channel_text([]) == ""


def test_one_user_without_a_test_item(capsys):
    for count, words in ((1, "1 user has no test item"), (2, "2 users have no test item")):
        one = result()
        one["data"] |= {"split": "last item by time", "users_not_evaluated": count}
        run_table(one)
        assert words in capsys.readouterr().out


def test_data_that_was_read_alike_is_the_same_data(rows):
    """However it was said: named columns that are recognised anyway, and defaults written out."""
    columns = {"user": "user", "item": "item"}
    plain, written = result(seed=0, columns={}), result(seed=1, columns=columns, repeats="merge", k_core=0)
    written["config"]["split"], older = "leave-one-out", result(seed=2)
    for known in (plain, written):
        known["data"]["columns"] = columns
    _, body = rows(plain, written, older)
    assert body[0][:3] == ["tastes", "pfedrec", "3"]


def test_what_a_named_set_does_with_repeats_is_its_default(rows):
    own, merged = (result(data="lastfm-2k-tags", repeats=repeats) for repeats in ("keep", "merge"))
    for each in (own, merged):
        each["config"]["data"] = "lastfm-2k-tags"
    assert [row[1] for row in rows(own, merged)[1]] == ["pfedrec", "repeats=merge"]


def test_only_what_is_not_a_default_is_named(rows):
    other = result(min_rating=4.0, repeats="keep", split="time")
    assert [row[:5] for row in rows(result(), other)[1]] == [
        ["tastes", "pfedrec", "1", "0.2500", "0.5000"],
        ["tastes", "min_rating=4.0", "repeats=keep", "split=time", "pfedrec"],
    ]
    one, two = result(), result(seed=1)
    one["data"]["columns"], two["data"]["columns"] = {"user": "a"}, {"user": "b"}
    assert [row[1] for row in rows(one, two)[1]] == ["columns={'user':'a'}", "columns={'user':'b'}"]


def test_what_is_as_wide_as_the_catalogue_is_counted_by_its_items():
    from federec.methods.registry import METHODS
    from federec.reporting.tables import method_row

    sasrec = method_row(METHODS["fedsasrec"])
    assert sasrec["sent"].startswith("260 B for each item of the catalogue + ")  # 64 values of a row and a bias
    assert "layer 0, layer 1" in sasrec["shared"]
    assert method_row(METHODS["fedease"])["sent"] == "4 B for each pair of items of the catalogue"
    assert method_row(METHODS["fedmf"])["sent"] == "132 B an item"
