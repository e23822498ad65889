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
