"""What `federec new` writes passes its own checks and trains."""

import subprocess
import sys

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("my_idea", "my_twist"):
        sys.modules.pop(name, None)


def test_a_new_method_passes_its_checks_and_learns(federec, here, ratings):
    said = federec("new", "method", "my-idea")
    assert said.code == 0
    assert said.out.splitlines() == [
        "wrote my_idea.py",
        "wrote test_my_idea.py",
        "check it:  federec check my_idea.py:MyIdea",
        "train it:  federec train my_idea.py:MyIdea --rounds 20",
    ]
    assert len((here / "my_idea.py").read_text().splitlines()) <= 40
    said = federec("check", "my_idea.py:MyIdea")
    assert said.code == 0 and said.out.rstrip().endswith("all checks passed")
    assert "above chance" in said.out
    assert federec("train", "my_idea.py:MyIdea", "--data", ratings, "--rounds", 2, "-q").code == 0
    assert (here / "runs" / "my-idea-ratings-clean-s0" / "result.json").exists()
    said = federec("methods", "my_idea.py:MyIdea").out
    assert "item_lr_factor" in said and "Step of the private user vector." in said
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "13 passed" in done.stdout


def test_a_new_plugin_passes_its_checks_and_learns(federec, here, ratings):
    assert federec("new", "plugin", "my-twist").code == 0
    said = federec("check", "my_twist.py:MyTwist")
    assert said.code == 0 and "on pfedrec: stopped and resumed" in said.out
    given = ("--with", "my_twist.py:MyTwist", "--set", "decay=0.5", "--data", ratings, "--rounds", 1, "-q")
    assert federec("train", "fedmf", *given).code == 0
    assert (here / "runs" / "fedmf+my-twist-ratings-clean-s0").exists()


def test_a_check_that_fails_says_so(federec, here):
    federec("new", "method", "my-idea")
    text = (here / "my_idea.py").read_text()
    assert 'fr.dot(p["user"], p["items"])' in text
    crowd = 'fr.dot(p["user"] - p["user"].mean(0), p["items"])'
    (here / "my_idea.py").write_text(text.replace('fr.dot(p["user"], p["items"])', crowd))
    said = federec("check", "my_idea.py:MyIdea")
    assert said.code == 1
    assert "FAILED" in said.out and "checks failed" in said.out.splitlines()[-1]


def test_nothing_is_overwritten_or_hidden(refused, federec, here):
    federec("new", "method", "my-idea")
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    assert "my_idea.py: exists already; choose another name" in refused("new", "method", "my-idea")
    assert "would hide the module 'torch'" in refused("new", "method", "torch")
    assert "cannot be the name of a file and a class" in refused("new", "plugin", "../x")
    assert before == {path.name: path.read_bytes() for path in here.iterdir()}
