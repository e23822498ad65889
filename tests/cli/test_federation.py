"""`federec federation`: what it prepares, and what it refuses before anything is written."""

import json
import re

import pytest
import yaml

pytest.importorskip("flwr", reason="pip install federec[flower]")


def test_prepare_and_new_items(federec, tmp_path, catalogue):
    run = tmp_path / "run"
    network = ("--network", "minimum=3", "--stage", "clip:norm=2")
    said = federec("federation", "prepare", run, "--catalogue", catalogue, "--rounds", 7, *network)
    assert said.code == 0
    assert said.out == f"start or continue it with: federec federation serve {run} --certificates FOLDER\n"
    assert run.stat().st_mode & 0o077 == 0
    settings = json.loads((run / "federation.json").read_text())
    assert (settings["minimum"], settings["sizes"]) == (3, [3])
    assert yaml.safe_load((run / "config.yaml").read_text())["channel"] == [{"stage": "clip", "norm": 2.0}]
    assert federec("federation", "add-items", run, "m2", "m4").out == "1 new items, 4 in all\n"
    assert json.loads((run / "catalogue.json").read_text())["items"] == ["m1", "m2", "m3", "m4"]


def test_without_stages_devices_only_send_in_secure_sums(federec, tmp_path, catalogue):
    channels, minimums = [], []
    for number, stages in enumerate(((), ("--stage", "none"), ("--stage", "clip:norm=1", "--stage", "secure-sum"))):
        run = tmp_path / str(number)
        assert federec("federation", "prepare", run, "--catalogue", catalogue, *stages).code == 0
        channels.append([each["stage"] for each in yaml.safe_load((run / "config.yaml").read_text())["channel"]])
        minimums.append(json.loads((run / "federation.json").read_text())["minimum"])
    assert channels == [["secure-sum"], [], ["clip", "secure-sum"]]
    assert minimums == [10, 1, 10]


def test_refusals_leave_nothing_behind(refused, tmp_path, catalogue, ratings):
    run = tmp_path / "run"
    for text, *arguments in (
        ("works on every device's own message", "prepare", run, "--catalogue", catalogue, "--method", "metamf"),
        ("sees everybody's history", "prepare", run, "--catalogue", catalogue, "--method", "ease"),
        ("did you mean 'deadline'", "prepare", run, "--catalogue", catalogue, "--network", "dedline=3"),
        (
            "set minimum to 2 or more",
            *("prepare", run, "--catalogue", catalogue, "--stage", "secure-sum", "--network", "minimum=1"),
        ),
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
        ("a device hides among others", "up", "--data", ratings, "--devices", 1, "--out", run),
        ("--devices 12", "up", "--data", ratings, "--stage", "none", "--aggregator", "median", "--out", run),
        ("leave out the other options", "up", "--resume", tmp_path, "--rounds", 3),
        ("No such option '--tls'", "up", "--data", ratings, "--tls", "--out", run),
        ("is not the folder of a federation", "up", "--resume", tmp_path),
        ("is not the folder of a federation", "add-items", tmp_path, "m1"),
        ("is not a key file", "join", "127.0.0.1:9", "--folder", run, "--key", ratings, "--insecure"),
        ("write it as HOST:PORT", "join", "example.org", "--folder", run, "--key", ratings),
        ("is for a server on this machine", "join", "example.org:80", "--key", ratings, "--insecure"),
        ("is not the folder of a federation", "serve", run, "--certificates", tmp_path),
        ("is not the folder of a federation", "remove", run, "phone"),
    ):
        assert text in refused("federation", *arguments)
        assert not run.exists()


def test_a_federations_folder_is_no_local_run(federec, refused, tmp_path, catalogue):
    run = tmp_path / "run"
    federec("federation", "prepare", run, "--catalogue", catalogue)
    assert f"federec federation up --resume {run}" in refused("train", "--resume", run)
    again = refused("federation", "prepare", run, "--catalogue", catalogue)
    assert f"holds an unfinished run (continue it with: federec federation up --resume {run})" in again


def test_what_cannot_be_served_safely_is_refused(federec, refused, tmp_path, catalogue):
    run, tls = tmp_path / "run", tmp_path / "tls"
    federec("federation", "prepare", run, "--catalogue", catalogue, "--network", "metrics_host=0.0.0.0")
    assert "cannot be read" in refused("federation", "serve", run, "--certificates", tls, "--port", 0)
    federec("federation", "certificates", tls, "--host", "localhost")
    given = ("federation", "serve", run, "--certificates", tls, "--port", 0)
    assert "--insecure is for loopback" in refused(*given, "--insecure")
    settings = json.loads((run / "federation.json").read_text())
    (run / "federation.json").write_text(json.dumps(settings | {"metrics_port": 0}))
    assert "metrics are served on loopback" in refused(*given)
    (run / "federation.json").write_text(json.dumps(settings))
    (tls / "server.key").unlink()
    assert "server.key: cannot be read" in refused(*given)


def test_a_server_says_where_it_listens_and_what_it_waits_for(federec, tmp_path, catalogue, monkeypatch):
    from federec.runtimes.flower import server

    run, tls = tmp_path / "run", tmp_path / "tls"
    federec("federation", "prepare", run, "--catalogue", catalogue, "--network", "expected=7")
    federec("federation", "certificates", tls, "--host", "localhost")
    for name in ("start", "serve"):
        monkeypatch.setattr(server, name, lambda *_: None)
    monkeypatch.setattr("os.umask", lambda mask: None)
    said = federec("federation", "serve", run, "--certificates", tls, "--host", "127.0.0.1", "--port", 0)
    assert said.code == 0
    told = rf"listening on 127.0.0.1:[1-9]\d+, waiting for 7 devices; what happens is written to {run}/events.jsonl\n"
    assert re.fullmatch(told, said.err)


def test_a_split_of_the_data_is_refused_unless_it_is_set_aside(refused, monkeypatch, federec, tmp_path):
    data = tmp_path / "parted.csv"
    data.write_text("user,item,split\n" + "".join(f"u{u},i{i},train\n" for u in range(4) for i in range(5)))
    up = ("federation", "up", "--data", data, "--devices", 2, "--out", tmp_path / "run")
    assert refused(*up).startswith("split 'given': a federation's devices hold out their own two newest items")
    assert refused(*up, "--split", "time").startswith("split 'time': a federation's devices")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("federec.runtimes.flower.up.bring_up", lambda path: ())
    monkeypatch.setattr("federec.cli.federation.show_run", lambda *_: None)
    monkeypatch.setattr("federec.runs.folder.RunFolder.result", lambda self: {})
    said = federec(*up, "--split", "leave-one-out", "--repeats", "keep")
    assert (said.code, said.err) == (0, "")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["repeats"] == "keep"
