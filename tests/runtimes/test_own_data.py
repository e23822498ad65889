"""Runs on data frames: trained, kept, asked and resumed."""

import polars as pl
import pytest
import yaml

import federec as fr
from federec.runtimes.run import fingerprint

ROWS = pl.DataFrame(
    {
        "who": [f"u{user}" for user in range(12) for _ in range(6)],
        "item": [(user + 3 * step) % 10 for user in range(12) for step in range(6)],
        "stars": [1 + (user * step) % 5 for user in range(12) for step in range(6)],
        "when": [100 * user + step for user in range(12) for step in range(6)],
    }
)
OPTIONS = {"columns": {"user": "who"}, "min_rating": 1, "min_interactions": 3}


@pytest.fixture
def kept(tmp_path):
    """The folder of a run on a frame."""
    fr.train(fr.Popularity(), fr.load(ROWS, **OPTIONS), out=tmp_path / "run")
    return tmp_path / "run"


def refused(action, *arguments, **options):
    with pytest.raises(fr.UserError) as caught:
        action(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_train_accepts_what_load_accepts(tmp_path):
    named = ROWS.rename({"who": "user"})
    named.write_csv(tmp_path / "rows.csv")
    on_frame, on_file = (fr.train(fr.Popularity(), data) for data in (named, tmp_path / "rows.csv"))
    assert fingerprint(on_frame.data) == fingerprint(on_file.data)
    assert on_frame.test == on_file.test
    assert on_frame.result["data"]["name"] == "frame" and len(on_frame.result["data"]["sha256"]) == 64
    assert "cannot read interactions from a list" in refused(fr.train, fr.Popularity(), [1, 2])


def test_a_run_keeps_how_the_frame_was_read(kept):
    config = yaml.safe_load((kept / "config.yaml").read_text())
    assert {key: config[key] for key in OPTIONS} == OPTIONS and config["data"] == "<frame>"


def test_a_run_on_a_frame_asks_for_it_again(kept):
    said = "the data, 'frame', was in memory and is in no file; give it again: fr.Run.load(path, data=...)"
    assert said in refused(fr.Run.load, kept)
    again = fr.Run.load(kept, data=ROWS)  # read as it was read for the run
    assert [each.item for each in again.recommend("u0", k=3)] == [
        each.item for each in fr.Run.load(kept, data=fr.load(ROWS, **OPTIONS)).recommend("u0", k=3)
    ]
    assert "has changed since" in refused(fr.Run.load, kept, data=ROWS[:-1])


def test_a_run_on_a_frame_is_resumed_with_it(tmp_path):
    def stop(line, rounds):
        if line["round"] == 2:
            raise KeyboardInterrupt

    method, data = fr.FedMF(dim=4), fr.load(ROWS, **OPTIONS)
    whole = fr.train(method, data, rounds=3, engine="torch")
    with pytest.raises(KeyboardInterrupt):
        fr.train(method, data, rounds=3, engine="torch", out=tmp_path / "run", on_round=stop)
    assert "the data, 'frame', was in memory" in refused(fr.resume, tmp_path / "run")
    assert fr.resume(tmp_path / "run", data=ROWS).test == whole.test


def test_interactions_made_by_hand_are_in_memory_too(tmp_path, random_split):
    run = fr.train(fr.Popularity(), random_split().data, out=tmp_path / "run")
    assert "the data, 'small', was in memory" in refused(fr.Run.load, tmp_path / "run")
    assert fr.Run.load(tmp_path / "run", data=run.data).test == run.test


def test_a_run_from_before_these_settings_is_loaded(tmp_path):
    ROWS.rename({"who": "user"}).write_csv(tmp_path / "rows.csv")
    run = fr.train(fr.Popularity(), tmp_path / "rows.csv", out=tmp_path / "old")
    config = yaml.safe_load((tmp_path / "old" / "config.yaml").read_text())
    newer = ("min_rating", "repeats", "titles", "held_out", "split", "select", "patience")
    older = {key: value for key, value in config.items() if key not in newer}
    (tmp_path / "old" / "config.yaml").write_text(yaml.safe_dump(older))
    assert fr.Run.load(tmp_path / "old").test == run.test


def test_how_a_frame_was_read_is_said_once(recwarn):
    rows = ROWS.rename({"who": "user", "when": "moment"}).with_columns(moment=pl.col("moment") + 1_500_000_000)
    for _ in range(2):
        fr.train("fedease", rows, rounds=50)
    assert [str(warning.message) for warning in recwarn] == [
        "rounds 50: 'fedease' has done all it can after 6",
        "frame: unused columns: 'moment'",
        "frame: 'moment' looks like a time; use it with columns={'timestamp': 'moment'}",
        "frame: no time column, so held-out items are drawn at random",
    ]
    assert {warning.filename for warning in recwarn} == {__file__}
    recwarn.clear()
    fr.train("popularity", "tastes")
    assert not recwarn.list
