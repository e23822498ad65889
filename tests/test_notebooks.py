"""The notebooks in examples/ run from the first cell to the last."""

import json
import re
from pathlib import Path

import pytest

import federec as fr

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_cells_run(path, tmp_path, monkeypatch):
    pytest.importorskip("pandas", reason="the notebook has frames of pandas")
    pytest.importorskip("matplotlib", reason="pip install federec[results]").use("Agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {"__name__": path.stem}
    for number, cell in enumerate(cells, 1):
        exec(compile(re.sub(r"rounds=\d+", "rounds=2", cell), f"{path.name}, cell {number}", "exec"), names)
    assert isinstance(names["comparison"], fr.Comparison)
    verdicts = [record["verdict"] for record in names["comparison"].records()]
    verdict, _, seeds = verdicts[1].partition("; ")
    assert verdicts[0] == "baseline" and verdict in ("better", "worse", "no clear difference")
    assert seeds == "only 2 seeds"
