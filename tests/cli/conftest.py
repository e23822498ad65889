"""The command line, in this process where possible: importing torch takes longer than a tiny run."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Said(NamedTuple):
    code: int | str
    out: str
    err: str


@pytest.fixture
def federec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run the command with these arguments."""
    from federec.cli.main import run

    def call(*args: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["federec", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            run()
        code = end.value.code
        return Said(0 if code is None else code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(federec: Callable[..., Said]) -> Callable[..., str]:
    """Run a command that must be refused with one line, which is returned."""

    def call(*args: object) -> str:
        said = federec(*args)
        assert said.code == 2, said
        assert said.err.startswith("error: "), said
        assert said.err.count("\n") == 1, said
        assert said.out == "", said
        return said.err.removeprefix("error: ")

    return call


def write_ratings(
    path: Path,
    users: int = 12,
    items: int = 30,
    seed: int = 0,
    header: str = "user,item,timestamp",
    row: str = "u{},i{},{}",
) -> Path:
    """A small file of made-up interactions."""
    draw = random.Random(seed)
    lines = [header] if header else []
    for user in range(users):
        touched = draw.sample(range(items), min(items - 1, draw.randint(4, 15)))
        lines += [row.format(user, item, time) for time, item in enumerate(touched)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def make_ratings() -> Callable[..., Path]:
    return write_ratings


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    return write_ratings(tmp_path / "ratings.csv")


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    path = tmp_path / "catalogue.json"
    path.write_text(json.dumps({"items": ["m1", "m2", "m3"], "titles": {"m1": "Heat"}}))
    return path
