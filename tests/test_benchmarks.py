"""Benchmarks take long and some need a GPU: they do not run here. What they ask of federec is there."""

import ast
import importlib
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "federec":
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError as missing:
                assert missing.name in ("triton", "triton.language"), missing
                continue
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_the_first_screen_is_what_the_measurements_say(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["readme.py", "--check"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(BENCHMARKS[0].with_name("readme.py")), run_name="__main__")
    assert not end.value.code, capsys.readouterr().out


def test_the_ladder_of_bytes_gives_a_table(monkeypatch, random_split):
    monkeypatch.syspath_prepend(BENCHMARKS[0].parent)
    ladder = runpy.run_path(str(BENCHMARKS[0].with_name("ladder.py")))["ladder"]
    lines = ladder(random_split(users=20, items=30).data, [0], dims=(4,)).splitlines()
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in lines if " | " in line}
    assert len(cells) == 2 + 7
    whole, blocks = cells["three half-lives, EASE beside"], cells["the same in ten blocks"]
    assert whole[1] == blocks[1] and whole[4:] == blocks[4:]
    assert float(blocks[2]) <= float(whole[2]) and "learned rows of 4" in cells
