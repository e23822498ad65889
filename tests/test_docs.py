"""The examples of the documentation run as they stand there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["channel.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    from federec.aggregators.registry import AGGREGATORS
    from federec.stages.registry import STAGES

    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    before = {**STAGES}, {**AGGREGATORS}  # what a page registers is forgotten after it
    names: dict[str, object] = {"__name__": "docs"}
    try:
        for block in blocks:
            exec(compile(block, page, "exec"), names)
    finally:
        for registry, kept in zip((STAGES, AGGREGATORS), before, strict=True):
            registry.clear()
            registry.update(kept)


PAGE = (DOCS / "adding-a-method.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', PAGE, re.S))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def run(*words, cwd):
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_trains_the_method(here):
    assert set(FILES) == {"mine.py", "script.py", "twist.py", "pyproject.toml"}
    said = run("script.py", cwd=here)
    assert "Recommendation(item=" in said and "dim=16" in said


@pytest.mark.parametrize("reference", ["mine.py:Mine", "twist.py:Halved"])
def test_the_files_pass_their_checks(here, reference):
    said = run("-m", "federec", "check", reference, cwd=here)
    assert "all checks passed" in said
    named = re.findall(r"^\| ([\w, ]+) \| ", PAGE, re.M)[1:]
    assert all(name in said for row in named for name in row.split(", "))


def test_the_commands_are_ones_that_there_are(here):
    commands = [line.split("#")[0].split() for line in re.findall(r"^federec .*", PAGE, re.M)]
    assert {words[1] for words in commands} == {"new", "check", "train", "tune", "compare"}
    trained = next(words for words in commands if "--with" in words)
    run("-m", *trained[:-1], "1", "--quiet", cwd=here)


def test_the_entry_points_are_of_the_groups_that_are_looked_in():
    from federec.methods.registry import METHOD
    from federec.plugins.registry import PLUGIN

    groups = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]
    assert {*groups} == {*METHOD.groups, *PLUGIN.groups}
