"""The page docs/benchmarks.md: a benchmark writes its own section, between two marks, and leaves the others alone."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
HEAD = """# Benchmarks

Every section is written by the command above its tables; nothing here is typed. Ratios are taken within one run. Run a
command again to replace its section. `federec data get ml-100k` and `ml-1m` fetch the data.
"""


def put(name: str, title: str, text: str) -> None:
    """Write a section, in place of the one of that name."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    body = f"## {title}\n\n    {command}\n\n{text.strip()}\n\nMachine: {machine()}."
    section = f"<!-- {name} -->\n{body}\n<!-- end {name} -->\n"
    old = re.compile(rf"<!-- {name} -->\n.*?<!-- end {name} -->\n", re.S)
    page = old.sub(lambda _: section, page) if old.search(page) else f"{page}\n{section}"
    PAGE.write_text(page, encoding="utf-8")


def table(head: list[str], rows: list[list[str]]) -> str:
    """As Markdown; the first column to the left, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Processor and versions."""
    import numpy
    import torch

    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    name = model[1].strip() if model else platform.processor() or platform.machine()
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}"
