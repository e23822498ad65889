"""`federec federation`: what it prepares, and what it refuses before anything is written."""

import json

import pytest
import yaml

pytest.importorskip("cryptography", reason="pip install federec[flower]")


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "catalogue.json"
    path.write_text(json.dumps({"items": ["m1", "m2", "m3"], "titles": {"m1": "Heat"}}))
    return path


def test_prepare_and_new_items(federec, tmp_path, catalogue):
    run = tmp_path / "run"
    network = ("--network", "minimum=3", "--stage", "decoys:count=2")
    said = federec("federation", "prepare", run, "--catalogue", catalogue, "--rounds", 7, *network)
    assert said.code == 0
    assert said.out == f"start or continue it with: flwr run {run / 'app'} SUPERLINK\n"
    settings = json.loads((run / "federation.json").read_text())
    assert (settings["minimum"], settings["sizes"]) == (3, [3])
    assert yaml.safe_load((run / "config.yaml").read_text())["channel"] == [{"stage": "decoys", "count": 2}]
    assert f"folder = '{run}'" in (run / "app" / "pyproject.toml").read_text()
    assert federec("federation", "add-items", run, "m2", "m4").out == "1 new items, 4 in all\n"
    assert json.loads((run / "catalogue.json").read_text())["items"] == ["m1", "m2", "m3", "m4"]


def test_refusals_leave_nothing_behind(refused, tmp_path, catalogue, ratings):
    run = tmp_path / "run"
    for text, *arguments in (
        ("works on every device's own message", "prepare", run, "--catalogue", catalogue, "--method", "metamf"),
        ("sees everybody's history", "prepare", run, "--catalogue", catalogue, "--method", "ease"),
        ("did you mean 'deadline'", "prepare", run, "--catalogue", catalogue, "--network", "dedline=3"),
        ("set minimum to 3 or more", "prepare", run, "--catalogue", catalogue, "--stage", "secure-sum"),
        (
            "say it as a stage: --stage secure-sum",
            "prepare",
            run,
            "--catalogue",
            catalogue,
            "--network",
            "secure=true",
        ),
        ("is not a catalogue", "prepare", run, "--catalogue", ratings),
        ("has 12 users, and a device hosts one or more", "up", "--data", ratings, "--devices", 13, "--out", run),
        ("--network minimum: write it as key=value", "up", "--data", ratings, "--network", "minimum", "--out", run),
        ("a round needs 3", "up", "--data", ratings, "--devices", 2, "--network", "minimum=3", "--out", run),
        ("leave out the other options", "up", "--resume", tmp_path, "--rounds", 3),
        ("add --tls", "up", "--data", ratings, "--auth", "--out", run),
        ("is not the folder of a federation", "up", "--resume", tmp_path),
        ("is not the folder of a federation", "add-items", tmp_path, "m1"),
        ("is not a key file", "join", "127.0.0.1:9", "--folder", run, "--key", ratings, "--insecure"),
    ):
        assert text in refused("federation", *arguments)
        assert not run.exists()


def test_a_federations_folder_is_no_local_run(federec, refused, tmp_path, catalogue):
    run = tmp_path / "run"
    federec("federation", "prepare", run, "--catalogue", catalogue)
    assert f"federec federation up --resume {run}" in refused("train", "--resume", run)
    again = refused("federation", "prepare", run, "--catalogue", catalogue)
    assert f"holds an unfinished run (continue it with: federec federation up --resume {run})" in again


def test_certificates_and_keys(federec, refused, tmp_path):
    assert (
        federec("federation", "certificates", tmp_path / "tls", "--host", "localhost", "--host", "10.0.0.1").code == 0
    )
    assert federec("federation", "node-key", tmp_path / "node").out.endswith(
        f"register {tmp_path / 'node'}.pub SUPERLINK\n"
    )
    assert "never overwritten" in refused("federation", "certificates", tmp_path / "tls", "--host", "localhost")
    assert "exists" in refused("federation", "node-key", tmp_path / "node")


def test_the_board_shows_the_newest_of_every_device():
    from federec.cli.federation import Board

    board = Board()
    for event in (
        {"event": "asked", "kind": "train", "round": 2, "devices": 3},
        {"event": "reply", "kind": "train", "round": 2, "device": "1111111", "users": 4},
        {"event": "rejected", "round": 2, "device": "2222222", "reason": "norm", "detail": "large"},
        {"event": "missing", "kind": "train", "round": 2, "device": "3333333"},
        {"event": "round", "round": 2, "rounds": 5, "loss": 0.5, "hr@10": 0.25, "seconds": 6.1},
    ):
        board.take(event)
    assert board.title == "round 2 of 5: valid hr@10 0.2500, 6.1 s"
    cells = [list(column.cells) for column in board.table().columns]
    assert cells[0] == ["111111", "222222", "333333"]
    assert cells[3] == ["train: answered", "refused: norm", "did not answer in time"]
