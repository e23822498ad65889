from types import SimpleNamespace

import pytest


def test_tune_says_how_to_go_on(federec, monkeypatch, ratings, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    pytest.importorskip("optuna", reason="pip install federec[results]")
    monkeypatch.setattr("federec.reproduction.tune.search", interrupted)
    said = federec("tune", "fedmf", "--data", ratings, "--runs", tmp_path)
    assert said.code == 130
    assert said.err == "\nstopped; the finished trials are kept, the same command goes on with them\n"


def test_tune_says_how_to_train_with_what_it_found(federec, monkeypatch, ratings, tmp_path):
    monkeypatch.setattr("federec.reproduction.tune.search", lambda *_: SimpleNamespace(best={"lr": 0.123456}))
    given = ("--data", ratings, "--with", "sam", "--k-core", 2)
    said = federec("tune", "fedmf", *given, "--rounds", 3, "--runs", tmp_path).out
    assert f"use it: federec train fedmf --data {ratings} --with sam --seed 0 --k-core 2 --set lr=0.1235\n" in said


def test_tune_says_how_the_data_was_read_and_which_rounds_are_too_many(federec, monkeypatch, make_ratings, tmp_path):
    monkeypatch.setattr("federec.reproduction.tune.search", lambda *_: SimpleNamespace(best={}))
    data = make_ratings(tmp_path / "timeless.csv", header="user,item", row="u{},i{}")
    assert federec("tune", "fedease", "--data", data, "--rounds", 50).err.splitlines() == [
        "rounds 50: 'fedease' has done all it can after 6",
        "timeless.csv: no time column, so held-out items are drawn at random",
    ]


def test_tune_has_the_options_of_a_run(federec, monkeypatch, ratings, tmp_path):
    asked = {}

    def searched(config, *_):
        asked.update(config)
        return SimpleNamespace(best={"lr": 0.1})

    monkeypatch.setattr("federec.reproduction.tune.search", searched)
    given = ("--select", "sampled.hr@5", "--patience", 3, "--participation", 0.5, "--evaluate-users", 4)
    given += ("--device", "cpu", "--stage", "clip:norm=2", "--stage", "dense", "--aggregator", "touched-mean")
    said = federec("tune", "fedmf", "--data", ratings, *given, "--runs", tmp_path).out
    assert (asked["select"], asked["patience"], asked["participation"]) == ("sampled.hr@5", 3, 0.5)
    assert (asked["evaluate_users"], asked["aggregator"]) == (4, "touched-mean")
    assert [stage["stage"] for stage in asked["channel"]] == ["clip", "dense"]
    words = "--patience 3 --participation 0.5 --evaluate-users 4 --device cpu --stage clip:norm=2 --stage dense"
    assert f"--select sampled.hr@5 {words} --aggregator touched-mean --set lr=0.1\n" in said
