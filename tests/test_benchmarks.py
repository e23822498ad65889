"""Benchmarks take long and some need a GPU: they do not run here. What they ask of federec is there."""

import ast
import importlib
import runpy
import sys
from pathlib import Path

import pytest

import federec as fr

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


def test_order_and_hybrid_give_tables(monkeypatch, random_split, tmp_path, capsys):
    """A run is a line of the file, and what the file has is not trained again; hybrids take the run folders."""
    monkeypatch.syspath_prepend(BENCHMARKS[0].parent)
    order, hybrid = importlib.import_module("order"), importlib.import_module("hybrid")
    monkeypatch.setattr(importlib.import_module("page"), "DOCS", tmp_path)
    monkeypatch.setattr(hybrid, "OWN", 2)
    data, small = random_split(users=20, items=30).data, {"dim": 4, "window": 6}
    monkeypatch.setattr(fr, "load", lambda name: data)
    runs = [
        order.Plan("small", "sasrec", fr.SASRec(**small), 1),
        order.Plan("small", "fedsasrec", fr.FedSASRec(**small), 2, ("quantise:bits=8",)),
        order.Plan("small", "fednext", fr.FedNext(), main=True),
    ]
    monkeypatch.setattr(order, "plans", lambda: iter(runs))
    command = ["--out", str(tmp_path / "out"), "--data", "small", "--keep", str(tmp_path), "--jobs", "2", "--page"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["order.py", *command, "--seeds", "3", "4"])
        order.main()
    assert len(order.lines(tmp_path / "out")) == 4
    shown = capsys.readouterr().out
    assert "| fednext | 2 |" in shown and (tmp_path / "benchmarks-order.svg").exists()
    folders = [str(order.folder(tmp_path, plan, 3)) for plan in runs[1:]]
    monkeypatch.setattr(sys, "argv", ["hybrid.py", *folders, "--data", "small", "--start", "2"])
    hybrid.main()
    assert capsys.readouterr().out.count("\n| ") == 1 + 1 + 8 + 2


def test_the_page_on_attackers_says_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS[0].parent)
    poisoning = importlib.import_module("poisoning")
    page, found = poisoning.PAGE.read_text(encoding="utf-8"), poisoning.known()
    assert {poisoning.key(job) for job in poisoning.jobs()} <= found.keys()
    assert poisoning.claim(found) in page and poisoning.grid(found) in page


def test_privacy_gives_tables_and_goes_on_where_it_stopped(monkeypatch, random_split, tmp_path, capsys):
    pytest.importorskip("dp_accounting", reason="pip install federec[privacy]")
    monkeypatch.syspath_prepend(BENCHMARKS[0].parent)
    privacy = importlib.import_module("privacy")
    monkeypatch.setattr(importlib.import_module("page"), "DOCS", tmp_path)
    data = random_split(users=20, items=30).data
    monkeypatch.setattr(fr, "load", lambda name: data)
    command = ["--out", str(tmp_path / "out"), "--data", "small", "--budget", "1", "--only", "fedease"]
    for seeds in (["3"], ["3", "4"]):
        monkeypatch.setattr(sys, "argv", ["privacy.py", *command, "--epsilons", "4", "--seeds", *seeds, "--page"])
        privacy.main()
    lines = privacy.lines(tmp_path / "out")
    assert len(lines) == 4 + 3 and {line["epsilon"] for line in lines} == {None, 4.0}
    assert "| `fedease` |" in capsys.readouterr().out and "keeps most" in (tmp_path / "accuracy.md").read_text()
    assert all(line["privacy"]["epsilon"] <= 4 for line in lines if line["epsilon"])


def test_audits_become_a_page(monkeypatch, random_split, tmp_path, capsys):
    """A run is a line of the file, and what the file has is not audited again."""
    monkeypatch.syspath_prepend(BENCHMARKS[0].parent)
    audits = importlib.import_module("audit")
    (tmp_path / "audit.md").write_text("# Audit\n\n<!-- audit -->\nold\n<!-- end audit -->\n\nend\n")
    monkeypatch.setattr(importlib.import_module("page"), "DOCS", tmp_path)
    monkeypatch.setattr(audits, "PAGE", tmp_path / "audit.md")
    data, small = random_split(users=30, items=60, least=5, most=10).data, {"dim": 8, "item_lr_factor": 0.2}
    monkeypatch.setattr(fr, "load", lambda name: data)
    noise = ("clip:norm=1", "central-noise", "secure-sum")
    runs = [audits.Plan("fedmf", "in the clear", settings=small), audits.Plan("fedmf", "noise", noise, 3.0, small)]
    monkeypatch.setattr(audits, "plans", lambda: iter(runs))
    command = ["audit.py", "--out", str(tmp_path / "out"), "--rounds", "2", "--page"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", command)
        audits.main()
    assert len(audits.lines(tmp_path / "out")) == 2 and (tmp_path / "benchmarks-audit.svg").exists()
    page = (tmp_path / "audit.md").read_text()
    assert page.startswith("# Audit") and page.endswith("end\n") and "old" not in page
    assert page.count("| fedmf |") == 2 and "* **In the clear** (`fedmf`): a server names items" in page
