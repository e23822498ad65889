"""Python in the documentation runs as it is written, block after block."""

import re
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
