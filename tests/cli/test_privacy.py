"""`federec privacy plan`, and `federec train --epsilon`."""

import json

import pytest

pytest.importorskip("dp_accounting", reason="pip install federec[privacy]")


def test_a_plan_shows_what_an_epsilon_costs(federec):
    said = federec(
        "privacy", "plan", "fedmf", "--users", 6000, "--items", 3700, "--epsilon", 3, "--rounds", 10, "--json"
    )
    found = json.loads(said.out)
    assert (found["users"], found["rounds"], found["values"]) == (6000, 10, 3700 * 32)
    assert found["epsilon"]["pld"] <= 3 < found["epsilon"]["rdp"] and found["delta"] == 1e-6
    assert found["noise_per_value_of_the_mean"] == pytest.approx(found["noise_multiplier"] / 6000)
    assert found["noise_to_longest_sum"] == pytest.approx(found["noise_multiplier"] * (3700 * 32) ** 0.5 / 6000)
    many = ("--users", 10**7, "--items", 3700, "--epsilon", 3, "--rounds", 10)
    assert "longest sum that" not in federec("privacy", "plan", "fedmf", *many).out
    words = federec("privacy", "plan", "fedmf", "--users", 100, *many[2:]).out
    assert "epsilon by PLD" in words and "the model will know next to nothing" in words


def test_a_plan_for_noise_that_is_given(federec, ratings):
    noise = ("--stage", "clip:norm=2", "--stage", "central-noise:multiplier=2", "--rounds", 5, "--data", ratings)
    found = json.loads(federec("privacy", "plan", "fedmf", *noise, "--max-epsilon", 4, "--json").out)
    assert (
        found["noise_multiplier"] == 2 and found["clip"] == 2 and found["epsilon"]["pld"] <= 4 and found["rounds"] < 5
    )


def test_a_plan_refuses(refused):
    assert "give --users and --items, or --data" in refused("privacy", "plan", "--users", 5)
    assert "no noise that bounds anything; give --epsilon" in refused("privacy", "plan", "--users", 5, "--items", 9)
    assert "trained in one place" in refused("privacy", "plan", "ease", "--users", 5, "--items", 9, "--epsilon", 3)


def test_a_run_says_what_it_promises(federec, ratings, tmp_path, caplog):
    given = ("--data", ratings, "--rounds", 2, "--epsilon", 3, "--delta", 1e-5, "--out", tmp_path / "run", "-q")
    assert federec("train", "fedmf", *given, "--set", "dim=4").code == 0
    assert "privacy: epsilon 3 at delta 1e-05 (pld) for each user after 2 round(s)" in caplog.text
    assert "the model will know next to nothing" in caplog.text
    told = json.loads((tmp_path / "run/result.json").read_text())["privacy"]
    assert told["epsilon"] <= 3 and told["delta"] == 1e-5
    again = federec("train", "--config", tmp_path / "run/config.yaml", "--out", tmp_path / "again", "-q")
    assert again.code == 0
    assert json.loads((tmp_path / "again/result.json").read_text())["privacy"] == told
    other = ("--config", tmp_path / "run/config.yaml", "--epsilon", 1, "--out", tmp_path / "other", "-q")
    assert federec("train", *other).code == 0
    less = json.loads((tmp_path / "other/result.json").read_text())["privacy"]
    assert less["epsilon"] <= 1 and less["charged_rounds"] == 2 and less["noise_multiplier"] > told["noise_multiplier"]
