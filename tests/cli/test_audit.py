"""`federec audit` in this process."""

import json

import pytest

import federec as fr
from federec.auditing import audit
from federec.cli.names import AUDITS


@pytest.fixture
def folder(random_split, tmp_path, monkeypatch):
    data = random_split(users=30, items=80, least=5, most=10).data
    monkeypatch.setattr("federec.runtimes.run.data_of", lambda *_: data)
    return fr.train(fr.PFedRec(dim=4, item_lr_factor=0.2), data, rounds=1).save(tmp_path / "run")


def test_a_verdict_comes_before_the_table(federec, folder):
    said = federec("audit", folder, "--users", 10, "--attack", "rows", "--attack", "direction")
    lines = said.out.splitlines()
    assert said.code == 0 and lines[0].startswith("The server sees every device's message and learns")
    assert [line.split()[0] for line in lines[4:7]] == ["popularity", "rows", "direction"]


def test_programs_get_json(federec, folder):
    said = json.loads(federec("audit", folder, "--users", 10, "--attack", "direction", "--json").out)
    assert said["users"] == 10 and said["leaks"] and said["attacks"][1]["precision"] > 0.9


def test_a_broken_promise_is_an_error(federec, folder, monkeypatch):
    monkeypatch.setattr("federec.auditing.findings.Audit.kept", False)
    assert federec("audit", folder, "--users", 5, "--attack", "direction").code == 1


def test_what_is_no_run_or_attack_is_refused(refused, folder, tmp_path):
    assert "is not a run folder" in refused("audit", tmp_path / "nothing")
    assert "unknown attack 'rowz' - did you mean 'rows'?" in refused("audit", folder, "--attack", "rowz")


def test_the_shell_completes_attacks():
    assert AUDITS == audit.NAMES
