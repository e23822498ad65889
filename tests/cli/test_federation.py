"""`federec federation`: what it prepares, and what it refuses before anything is written."""

import json
import re

import pytest
import yaml

pytest.importorskip("flwr", reason="pip install federec[flower]")

from cryptography.hazmat.primitives import hashes

from federec.network.certificates import Identity


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "catalogue.json"
    path.write_text(json.dumps({"items": ["m1", "m2", "m3"], "titles": {"m1": "Heat"}}))
    return path


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


def fingerprint(path):
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes()).fingerprint(hashes.SHA256())


def test_the_servers_certificate_is_renewed_under_a_root_that_is_kept_elsewhere(federec, refused, tmp_path):
    tls, offline, later = tmp_path / "tls", tmp_path / "offline", tmp_path / "later"
    said = federec("federation", "certificates", tls, "--host", "localhost", "--host", "10.0.0.1")
    assert f"keep {tls / 'ca.key'} offline" in said.out
    first = fingerprint(tls / "ca.crt"), fingerprint(tls / "server.pem")
    assert federec("federation", "certificates", tls, "--host", "localhost").code == 0
    assert fingerprint(tls / "ca.crt") == first[0]
    assert fingerprint(tls / "server.pem") != first[1]
    offline.mkdir()
    for name in ("ca.crt", "ca.key"):
        (tls / name).rename(offline / name)
    assert federec("federation", "certificates", later, "--host", "localhost", "--root", offline).code == 0
    assert {path.name for path in later.iterdir()} == {"ca.crt", "server.pem", "server.key"}
    assert fingerprint(later / "ca.crt") == first[0]
    assert all(path.stat().st_mode & 0o077 == 0 for path in later.iterdir())
    (offline / "ca.key").unlink()
    assert "ca.key: cannot be read" in refused(
        "federation", "certificates", later, "--host", "localhost", "--root", offline
    )


def test_a_device_is_admitted_and_removed(federec, refused, tmp_path, catalogue):
    root, run, request, out = tmp_path / "root", tmp_path / "run", tmp_path / "phone.csr", tmp_path / "phone.crt"
    federec("federation", "certificates", root, "--host", "localhost")
    federec("federation", "prepare", run, "--catalogue", catalogue)
    request.write_bytes(Identity.new().request())
    given = ("--root", root, "--users", 3, "--out", out, "--run", run)
    said = federec("federation", "admit", request, *given)
    assert said.out == f"device 'phone' with 3 users is admitted for 365 days: {out}\n"
    assert (run / "nodes" / "phone.crt").read_bytes() == out.read_bytes()
    assert "phone.crt: exists" in refused("federation", "admit", request, *given)
    other = ("--root", root, "--out", tmp_path / "other.crt")
    assert "is not a certificate request" in refused("federation", "admit", catalogue, *other)
    assert "name it NAME.crt" in refused("federation", "admit", request, "--root", root, "--out", tmp_path / "x")
    assert "did you mean 'phone'" in refused("federation", "remove", run, "phne")
    lines = [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["name"], line["users"]) for line in lines] == [("certificate", "phone", 3)]
    assert federec("federation", "remove", run, lines[0]["device"]).out == "device 'phone' is removed\n"
    assert not (run / "nodes" / "phone.crt").exists()
    assert [json.loads(line)["event"] for line in (run / "audit.jsonl").read_text().splitlines()][1:] == ["withdrawn"]


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


def test_invitations_are_for_one_person_each_and_the_server_gets_only_certificates(federec, tmp_path, catalogue):
    run, root, out = tmp_path / "run", tmp_path / "offline", tmp_path / "people"
    federec("federation", "prepare", run, "--catalogue", catalogue)
    federec("federation", "certificates", tmp_path / "tls", "--root", root, "--host", "127.0.0.1")
    page = "https://films.example/"
    said = federec("federation", "invite", out, "--root", root, "--page", page, "--count", 3, "--run", run)
    assert (said.code, said.err) == (0, "")
    links = [path.read_text().strip() for path in out.glob("*.link")]
    assert len({*links}) == 3 and all(link.startswith(f"{page}#join=") for link in links)
    assert {path.stat().st_mode & 0o077 for path in out.iterdir()} == {0}
    names = {path.stem for path in out.glob("*.link")}
    assert {path.name for path in (run / "nodes").iterdir()} == {f"{name}.crt" for name in names}
    audit = [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()]
    assert {(line["event"], line["name"], line["users"], line["days"]) for line in audit} == {
        ("certificate", name, 1, 90) for name in names
    }
    assert federec("federation", "remove", run, min(names)).code == 0


def test_what_is_wrong_with_a_gateway_is_said_before_anything_starts(refused, federec, tmp_path, catalogue):
    run, clear = tmp_path / "run", tmp_path / "clear"
    federec("federation", "prepare", run, "--catalogue", catalogue)
    federec("federation", "prepare", clear, "--catalogue", catalogue, "--stage", "none")
    serve, here = ("federation", "serve", run, "--certificates", tmp_path), ("--gateway", "127.0.0.1:0")
    assert "add --gateway HOST:PORT" in refused(*serve, "--page", run)
    assert "with --page RUN" in refused(*serve, *here)
    assert "write it as HOST:PORT" in refused(*serve, "--gateway", "8080", "--page", run)
    assert "browsers only join over TLS" in refused(*serve, "--gateway", "0.0.0.0:443", "--page", run)
    assert "is not finished" in refused(*serve, *here, "--page", run)
    told = refused("federation", "serve", clear, "--certificates", tmp_path, *here, "--page", run)
    assert "tabs only take part under 'secure-sum'" in told
    people = ("federation", "invite", tmp_path / "people", "--root", tmp_path / "nothing")
    for page in (
        "films.example",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example/",
        "http://[",
        "https:///",
    ):
        assert "browsers only join over https" in refused(*people, "--page", page)
    assert "ca.crt" in refused(*people, "--page", "http://localhost:8080/")
    assert "ca.crt" in refused(*people, "--page", "https://films.example/")
    assert not (tmp_path / "people").exists()
