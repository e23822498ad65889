"""The examples of the documentation run as they stand there; only rounds, users and data are fewer."""

import csv
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer

import federec as fr
from federec.cli.main import app
from federec.data import tastes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))}
BLOCK = re.compile(r"^(<!-- not run: .+ -->\n)?^```(\w*)( title=.*)?\n(.*?)^```", re.M | re.S)
"""The comment before a block says why it is not run: it needs real data, a network, a device folder."""


def blocks(page, language, marked=False):
    """Blocks of a page in that language; those that are not run only if `marked`."""
    found = BLOCK.findall(PAGES[page])
    return [text for mark, word, title, text in found if word == language and not title and (marked or not mark)]


@pytest.fixture(scope="module")
def few():
    """Some users of `tastes`, among them those that the pages ask for."""
    data = tastes.generate()
    chosen = np.flatnonzero(data.user_ids <= 60)
    rows = np.isin(data.users, chosen)
    cut = {name: getattr(data, name)[rows] for name in ("items", "times", "ratings")}
    users = np.searchsorted(chosen, data.users[rows]).astype(np.int32)
    return replace(data, **cut, users=users, user_ids=data.user_ids[chosen], source_rows=len(users))


@pytest.fixture
def reader(few, tmp_path, monkeypatch):
    """The folder of somebody who reads the documentation and has data to try it on."""
    monkeypatch.setattr(tastes, "generate", lambda: few)
    random, rows = np.random.default_rng(0), ["user,item,rating,timestamp,part"]
    parts = ["train"] * 13 + ["valid", "test"]
    for user in range(50):
        items = zip(random.permutation(80), parts, strict=False)
        rows += [f"{user},{item},{1 + item % 5},{when},{part}" for when, (item, part) in enumerate(items)]
    (tmp_path / "my_ratings.csv").write_text("\n".join(rows))
    (tmp_path / "items.csv").write_text("\n".join(["item,title", *(f"{item},Film {item}" for item in range(80))]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_python_of_a_page_runs(page, reader):
    from federec.aggregators.registry import AGGREGATORS
    from federec.stages.registry import STAGES

    before = {**STAGES}, {**AGGREGATORS}  # what a page registers is forgotten after it
    names: dict[str, object] = {"__name__": "docs"}
    try:
        for block in blocks(page, "python"):
            exec(compile(re.sub(r"rounds=\d+", "rounds=2", block), page, "exec"), names)
    finally:
        for registry, kept in zip((STAGES, AGGREGATORS), before, strict=True):
            registry.clear()
            registry.update(kept)


def commands(page, marked=True):
    """The federec commands of a page, as words."""
    texts = blocks(page, "", marked) + blocks(page, "bash", marked)
    texts += re.findall(r"^ {4}(federec .*)$", PAGES[page], re.M)
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|", re.sub(r"\s#.*|\s*>.*", "", line)):
                words = shlex.split(part)
                at = next((at for at, word in enumerate(words[:8]) if word == "federec"), None)
                if at is not None and (at == 0 or words[at - 1] == "-m"):
                    yield words[at + 1 :]


LINES = [(page, " ".join(words)) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{page}: {line}" for page, line in LINES])
def test_a_command_of_a_page_has_options_that_exist(page, line):
    """Parse the line as the command line would, and do not run it."""
    words, command, parent = [word for word in line.split() if word != "..."], typer.main.get_command(app), None
    while True:
        nested = hasattr(command, "commands")
        context = command.make_context(command.name, words, parent=parent, resilient_parsing=nested)
        if not nested:
            assert not context.args
            return
        _, command, words = command.resolve_command(context, words)
        parent = context


CHEAP = {("train",), ("compare",), ("recommend",), ("methods",), ("doctor",), ("data", "list"), ("data", "describe")}
"""Commands that are also run. Others have tests of their own: they start processes or take long."""


def cheap(words):
    """Whether a command is run here. Those with a file of the reader's own, mine.py:Mine, are run below."""
    other = {"--resume", "...", "cuda"} & {*words} or any(".py:" in word for word in words)
    return not other and bool({(words[0],), tuple(words[:2])} & CHEAP)


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(cheap, commands(page, marked=False)))])
def test_the_cheap_commands_of_a_page_run(page, reader, capsys):
    for words in filter(cheap, commands(page, marked=False)):
        words = ["tastes" if word in ("ml-100k", "ml-1m", "big") else word for word in words]
        if words[0] == "train":
            if "--rounds" in words:
                del words[words.index("--rounds") :][:2]
            words += ["--rounds", "1", "--evaluate-users", "40", "--quiet"]
        words = [path for word in words for path in ([*map(str, reader.glob(word))] if "*" in word else [word])]
        assert app(words, standalone_mode=False) in (None, 0), words
    assert "error" not in capsys.readouterr().err


def test_every_public_name_is_in_the_reference():
    named = re.findall(r"^::: federec\.(\w+)$", PAGES["api.md"], re.M)
    assert sorted(named) == fr.__all__
    assert len(named) == len({*named})


PAGE = PAGES["adding-a-method.md"]
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


def test_the_page_of_figures_shows_them_with_their_captions():
    drawings = pytest.importorskip("federec.reproduction.drawings.make", reason="pip install federec[results]").DRAWINGS
    for name, drawing in drawings.items():
        folder = DOCS / "figures"
        rows = [
            {key: _value(text) for key, text in row.items()}
            for row in csv.DictReader((folder / f"{name}.csv").read_text().splitlines())
        ]
        said = drawing.caption(rows)  # the caption is that of the numbers
        assert said in (folder / f"{name}.md").read_text() and said in PAGES["figures.md"], name
        assert f"figures/{name}.svg#" in PAGES["figures.md"] and (folder / f"{name}-dark.svg").is_file()


def _value(text):
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text
