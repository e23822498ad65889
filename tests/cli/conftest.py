"""The command line, in this process where possible: importing torch takes longer than a tiny run."""

import random
import sys
from typing import NamedTuple

import pytest


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def federec(monkeypatch, capsys):
    """Run the command with these arguments."""
    from federec.cli.main import run

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["federec", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            run()
        code = end.value.code
        return Said(0 if code is None else code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(federec):
    """Run a command that must be refused with one line, which is returned."""

    def call(*args):
        said = federec(*args)
        assert said.code == 2, said
        assert said.err.startswith("error: "), said
        assert said.err.count("\n") == 1, said
        assert said.out == "", said
        return said.err.removeprefix("error: ")

    return call


def write_ratings(path, users=12, items=30, seed=0, header="user,item,timestamp", row="u{},i{},{}"):
    """A small file of made-up interactions."""
    draw = random.Random(seed)
    lines = [header] if header else []
    for user in range(users):
        touched = draw.sample(range(items), min(items - 1, draw.randint(4, 15)))
        lines += [row.format(user, item, time) for time, item in enumerate(touched)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def make_ratings():
    return write_ratings


@pytest.fixture
def ratings(tmp_path):
    return write_ratings(tmp_path / "ratings.csv")
