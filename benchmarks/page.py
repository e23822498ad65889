"""The pages docs/benchmarks.md, on time and memory, and docs/accuracy.md: a benchmark writes its own section, between
two marks, and leaves the others alone. Its plot lies beside the page."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
BENCHMARKS = """# Benchmarks

Every section is written by the command above its tables; nothing here is typed. Ratios are taken within one run. Run a
command again to replace its section; `python benchmarks/again.py` runs them all. `federec data get ml-100k` and `ml-1m`
fetch the data.
"""
ACCURACY = """# What accuracy costs

What order, privacy, fewer bytes or a fresh start do to accuracy. Every section is written by the command above its
tables; nothing here is typed. Run a command again to replace its section. [What survives](results/summary.md) compares
the methods.
"""
HEADS = {"benchmarks": BENCHMARKS, "accuracy": ACCURACY}
"""Name of a page -> how it begins."""
MEASURES = "<!-- not run: measures for minutes or hours -->"


def put(name: str, title: str, text: str, where: str | None = None, page: str = "benchmarks") -> None:
    """Write a section, in place of the one of that name. `where` it was measured, if that was not here and now."""
    file = DOCS / f"{page}.md"
    whole = file.read_text(encoding="utf-8") if file.exists() else HEADS[page]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    body = f"## {title}\n\n{MEASURES}\n```bash\n{command}\n```\n\n{text.strip()}\n\nMachine: {where or machine()}."
    section = f"<!-- {name} -->\n{body}\n<!-- end {name} -->\n"
    old = re.compile(rf"<!-- {name} -->\n.*?<!-- end {name} -->\n", re.S)
    whole = old.sub(lambda _: section, whole) if old.search(whole) else f"{whole}\n{section}"
    file.write_text(whole, encoding="utf-8")


def table(head: list[str], rows: list[list[str]]) -> str:
    """As Markdown; the first column to the left, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bars(name: str, unit: str, groups: dict[str, dict[str, float]]) -> str:
    """Draw a group of bars for each line, one for each of its figures; returns the plot as Markdown."""
    from matplotlib.figure import Figure

    series = list(dict.fromkeys(label for group in groups.values() for label in group))
    figure = Figure(figsize=(7, 0.24 * len(groups) * (len(series) + 0.5) + 1.2), layout="constrained")
    axes, height = figure.subplots(), 0.8 / len(series)
    for number, label in enumerate(series):
        places = [at + number * height for at, group in enumerate(groups.values()) if label in group]
        axes.barh(places, [group[label] for group in groups.values() if label in group], height, label=label)
    for at, group in enumerate(groups.values()):
        for number, label in enumerate(series):
            if label in group:
                axes.text(group[label], at + number * height, f" {group[label]:.3g}", va="center", fontsize=7)
    values = [value for group in groups.values() for value in group.values()]
    axes.set(xscale="log" if max(values) > 20 * min(values) else "linear", xlabel=unit)
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.1)
    axes.set_yticks([at + height * (len(series) - 1) / 2 for at in range(len(groups))], list(groups), fontsize=8)
    axes.set_ylim(len(groups) - 1 + len(series) * height, -height)  # the first on top
    if len(series) > 1:
        figure.legend(loc="outside upper right", ncols=len(series), fontsize=8)
    return save(figure, name, unit)


def save(figure: Any, name: str, title: str) -> str:
    """Keep a plot beside the page; returns it as Markdown."""
    from federec.reproduction.figures import svg

    file = f"benchmarks-{name}.svg"
    (DOCS / file).write_text(svg(figure), encoding="utf-8")
    return f"![{title[:1].upper()}{title[1:]}]({file})"


def machine() -> str:
    """Processor, versions, what multiplies matrices in kernels, and the commit that was measured."""
    import numpy
    import scipy.linalg.blas  # noqa: F401  which numba calls
    import torch
    from threadpoolctl import threadpool_info

    from federec.reproduction.records import revision

    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    name = model[1].strip() if model else platform.processor() or platform.machine()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}"
    processors = {each["architecture"] for each in threadpool_info() if each["internal_api"] == "openblas"}
    versions += "".join(f", OpenBLAS for {processor}" for processor in sorted(processors))
    return f"{name}; {versions}; commit {revision()}"
