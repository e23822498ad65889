"""`federec federation invite`, and the gateway of `federec federation serve`."""

import json

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")


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
