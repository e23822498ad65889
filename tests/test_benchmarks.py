"""Benchmarks take long and some need a GPU: they do not run here. What they ask of federec is there."""

import ast
import importlib
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
