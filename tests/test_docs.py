"""The blocks of the documentation run as they stand there, in order; only rounds, users and data are fewer.

CONTRIBUTING.md says how a page marks what is not run and what is output."""

import csv
import gzip
import json
import os
import re
import runpy
import select
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml
from mkdocs.exceptions import PluginError
from tests import warm
from tests.pages import BLOCKS, DOCS, PAGES, SHELL, indented

import federec as fr
from federec.checks.suite import suite
from federec.cli.main import app
from federec.data import tastes
from federec.data.sets import SETS

PARSERS = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
PATIENCE = 300
"""Seconds that a block may take."""


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """A folder with the commands that pages use."""
    folder = tmp_path_factory.mktemp("bin")
    for known in SETS.values():
        if not known.built_in:
            (folder / "data" / known.folder).mkdir(parents=True, exist_ok=True)
            (folder / "data" / known.folder / "ratings.csv.gz").write_bytes(gzip.compress(warm.ratings().encode()))
    script = [sys.executable, warm.__file__, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(script, **pipes, text=True, env=_environment(folder)) as process:
        assert process.stdout.readline() == "ready\n"
        yield folder
        process.stdin.close()


def _environment(folder):
    """Of the reader: an own home, the package under test, and no colours."""
    own = {"HOME": str(folder), "COLUMNS": "140", "NO_COLOR": "1", "PYTHONPATH": str(Path(fr.__file__).parents[1])}
    hidden = ("FEDEREC_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return kept | own | {"FEDEREC_DATA": str(folder / "data"), "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def small_tastes():
    return warm.small_tastes()


@pytest.fixture
def reader(commands, small_tastes, tmp_path, monkeypatch):
    """The folder of somebody who reads a page and has data to try it on. Named sets are there, but small."""
    for name, value in _environment(commands).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tastes, "generate", lambda: small_tastes)
    for name, known in warm.small_sets().items():
        monkeypatch.setitem(SETS, name, known)
    (tmp_path / "my_ratings.csv").write_text(warm.ratings())
    (tmp_path / "items.csv").write_text("\n".join(["item,title", *(f"{item},Film {item}" for item in range(80))]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Shell:
    """The shell of a page: what a block sets and where it goes is there for the next one."""

    def __init__(self, folder):
        self._script = folder.parent / f"{folder.name}.sh"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(["bash", "--norc"], cwd=folder, start_new_session=True, **pipes)
        self._say("set -e -o pipefail; trap 'echo \"line $LINENO: $BASH_COMMAND\"' ERR")

    def _say(self, line):
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def run(self, block):
        """What it prints. It fails where a command of it fails."""
        self._script.write_text(block.numbered)
        answers = "<(printf 'y\\n%.0s' {1..9})"  # to questions
        self._say(f". {self._script} < {answers}; printf '\\nend of block\\n'")
        said, until = b"", time.monotonic() + PATIENCE
        output = self._process.stdout.fileno()
        while not said.endswith(b"\nend of block\n"):
            ready = select.select([output], [], [], until - time.monotonic())[0]
            part = os.read(output, 1 << 16) if ready else b""
            if not part:
                why = "failed" if ready else f"did not end within {PATIENCE} s"
                pytest.fail(f"{block.place}: the block {why}\n{block.text}\n{said.decode()}", pytrace=False)
            said += part
        return said.removesuffix(b"\nend of block\n").decode()

    def close(self):
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()


@pytest.fixture
def shell(reader):
    shell = Shell(reader)
    yield shell
    shell.close()


@pytest.fixture
def names():
    """What the Python blocks of a page know; what they register is forgotten after the page."""
    from federec.aggregators.registry import AGGREGATORS
    from federec.stages.registry import STAGES

    before = {**STAGES}, {**AGGREGATORS}
    yield {"__name__": "docs"}
    for registry, kept in zip((STAGES, AGGREGATORS), before, strict=True):
        registry.clear()
        registry.update(kept)


def python(block, names):
    """Run it in this process; what it prints."""
    said = StringIO()
    text = re.sub(r"\brounds=\d+", "rounds=2", block.numbered)
    try:
        with redirect_stdout(said):
            exec(compile(text, block.page, "exec"), names)
    except Exception as error:
        raise AssertionError(f"{block.place}: the block failed: {error!r}") from error
    return said.getvalue()


def _compared(line):
    """A line of output without what may differ: numbers, spaces, the lines of a table."""
    line = re.sub(r"[-+]?\d[\d,.]*", "0", line)
    return " ".join(re.sub(r"[\u2500-\u257f]+|-{3,}", " ", line).split())


def missing(shown, said):
    """The first line of `shown` that does not follow in `said`; None where all do. `...` stands for anything."""
    lines = iter([_compared(line) for line in said.splitlines()])
    for line in shown.splitlines():
        start, dots, _ = _compared(line).partition("...")
        if not any((each.startswith(start) if dots else each == start) for each in lines) and (start or not dots):
            return line
    return None


def page_to_run(page):
    """A page that starts a federation takes half a minute: only that of the README runs with `make test`."""
    commands = [block.text for block in BLOCKS[page] if block.runs and block.language in SHELL]
    starts = any(re.search(r"federation (up|serve)", text) for text in commands)
    return pytest.param(page, marks=[pytest.mark.slow] if starts and page != "README.md" else [])


RUN = [page_to_run(page) for page, found in BLOCKS.items() if any(block.runs for block in found)]


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run_in_order(page, reader, shell, names):
    said = None
    for block in BLOCKS[page]:
        if not block.runs:
            continue
        if block.title:
            path = reader / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language in SHELL:
            said = shell.run(block)
        elif block.language == "python":
            said = python(block, names)
        elif block.language == "text":
            assert said is not None, f"{block.place}: output, but nothing ran before it"
            line = missing(block.text, said)
            assert line is None, f"{block.place}: the block above does not print {line!r}, but\n{said}"
        else:
            _parse(block)


def _parse(block):
    assert block.language in PARSERS, f"{block.place}: mark the block: <!-- not run: why -->"
    try:
        PARSERS[block.language](block.text)
    except Exception as error:
        raise AssertionError(f"{block.place}: not {block.language}: {error}") from error


@pytest.mark.parametrize("page", PAGES)
def test_code_stands_between_fences(page):
    """Where it has a language, and a mark if it is not run."""
    found = indented(PAGES[page])
    assert not found, f"{page}:{found[0]}: code that is only indented; put it between ``` and ```"


@pytest.mark.parametrize("page", [page for page, found in BLOCKS.items() if any(not block.runs for block in found)])
def test_commands_that_are_not_run_have_options_that_exist(page):
    for block in BLOCKS[page]:
        if not block.runs and block.language in SHELL:
            for words in federec_commands(block.text):
                try:
                    parse(words)
                except typer.Exit:
                    pass
                except Exception as error:
                    pytest.fail(f"{block.place}: federec {' '.join(words)}: {error}", pytrace=False)


def federec_commands(text):
    """The federec commands of a shell block, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\||;", re.sub(r"(^|\s)#.*|\s*>.*", "", line)):
            words = shlex.split(part)
            if "federec" in words[:8]:
                place = words.index("federec")
                if place == 0 or words[place - 1] in ("-m", "sudo"):
                    yield [word for word in words[place + 1 :] if word not in ("...", "&")]


def parse(words):
    """Parse the words as the command line does; nothing runs."""
    command, parent = typer.main.get_command(app), None
    while True:
        nested = hasattr(command, "commands")
        context = command.make_context(command.name, [*words], parent=parent, resilient_parsing=nested)
        if not nested:
            assert not context.args
            return
        _, command, words = command.resolve_command(context, words)
        parent = context


def test_output_is_compared_but_for_its_numbers():
    said = "round 1/2  loss 0.6177\n ndcg@10   hr@10\n ─────\n test   0.01  0.20\nrun    runs/a\n"
    assert missing("ndcg@10 hr@10\n---\ntest 0.5 0.5\n", said) is None
    assert missing("round 2/2  loss ...\n...\nrun runs/a\n", said) is None
    assert missing("run runs/b\n", said) == "run runs/b"
    assert missing("run runs/a\ntest 0.01 0.20\n", said) == "test 0.01 0.20"


def test_every_public_name_is_in_the_reference():
    named = re.findall(r"^::: federec\.(\w+)$", PAGES["docs/api.md"], re.M)
    assert sorted(named) == fr.__all__
    assert len(named) == len({*named})


def test_entry_points_are_of_the_groups_that_are_looked_in():
    from federec.methods.registry import METHOD
    from federec.plugins.registry import PLUGIN

    files = [
        tomllib.loads(block.text) for found in BLOCKS.values() for block in found if block.title == "pyproject.toml"
    ]
    groups = {group for file in files for group in file["project"]["entry-points"]}
    assert groups == {*METHOD.groups, *PLUGIN.groups}


def test_the_checks_that_are_explained_exist():
    page = next(text for text in PAGES.values() if "| check | a failure usually means |" in text)
    rows = re.findall(r"^\| ([\w, ]+) \| ", page.split("| check | a failure usually means |")[1], re.M)
    assert len(rows) > 5
    assert {name for row in rows for name in row.split(", ")} <= {check.name for check in suite("fedmf")}


def test_drawings_follow_the_theme():
    """Or have a twin for the dark, as those of docs/figures."""
    drawings = [path for path in DOCS.rglob("*.svg") if path.parent.name != "figures"]
    fixed = [path.name for path in drawings if "prefers-color-scheme: dark" not in path.read_text("utf-8")]
    assert drawings and not fixed


def test_an_equation_that_cannot_be_shown_stops_the_build():
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    good, bad = (rf'<p><span class="arithmatex">\({text}\)</span></p>' for text in (r"a &lt; \hat{b}", r"\nothing{b}"))
    assert "<math" in hooks["on_page_content"](good, page) and "<mo" in hooks["on_page_content"](good, page)
    with pytest.raises(PluginError, match=r"page.md: cannot convert the equation .*nothing"):
        hooks["on_page_content"](bad, page)


def test_the_page_of_figures_shows_them_with_their_captions():
    drawings = pytest.importorskip("federec.reproduction.drawings.make", reason="pip install federec[results]").DRAWINGS
    for name, drawing in drawings.items():
        folder = DOCS / "figures"
        rows = [
            {key: _value(text) for key, text in row.items()}
            for row in csv.DictReader((folder / f"{name}.csv").read_text().splitlines())
        ]
        said = drawing.caption(rows)  # the caption is that of the numbers
        assert said in (folder / f"{name}.md").read_text() and said in PAGES["docs/figures.md"], name
        assert f"figures/{name}.svg#" in PAGES["docs/figures.md"] and (folder / f"{name}-dark.svg").is_file()


def _value(text):
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text
