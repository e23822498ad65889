import copy
import json

import pytest
from safetensors.torch import load_file, save_file
from tests.reporting.reader import Reader

import federec as fr
from federec.runs.folder import RunFolder
from federec.runtimes.report import report_of


@pytest.fixture
def ratings(tmp_path):
    lines = [f"u{user},i{(user * 7 + time * 3) % 30},{time}" for user in range(12) for time in range(8)]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,item,timestamp", *lines]))
    return tmp_path / "ratings.csv"


@pytest.fixture
def folder(tmp_path, ratings):
    fr.train("fedmf", ratings, rounds=2, out=tmp_path / "run")
    return RunFolder(tmp_path / "run")


def test_it_is_the_report_of_the_run(folder):
    assert report_of(folder) == (folder.path / "report.html").read_text()
    assert fr.Run.load(folder.path).report(folder.path / "b.html").read_text() == report_of(folder)


@pytest.fixture
def old(folder):
    """A run of a version that did not keep example lists by name."""
    (folder.model / "examples.json").unlink()
    return folder


def test_it_needs_no_data(folder, ratings):
    before = report_of(folder)
    ratings.unlink()
    assert report_of(folder) == before


def test_examples_of_older_runs_come_from_the_data(old):
    assert report_of(old) == (old.path / "report.html").read_text()


def test_without_the_data_only_examples_of_older_runs_are_left_out(old, ratings):
    ratings.write_text(ratings.read_text() + "\nu1,i29,9\n")
    changed = Reader(report_of(old)).text
    assert "Light and heavy users" in changed and "made without the data of the run" in changed
    ratings.unlink()
    assert Reader(report_of(old)).text == changed


def test_training_items_of_older_runs_come_from_the_data(old, ratings):
    ranks = old.model / "ranks.safetensors"
    new = report_of(old)
    kept = {key: value for key, value in load_file(ranks).items() if " " in key or key == "users"}
    del kept["training items"]
    save_file(kept, ranks)
    read = Reader(report_of(old))
    assert "Light and heavy users: NDCG@10" in read.text and "Popularity: Left out" in read.text
    assert [row for row in Reader(new).rows if row[0] == "5 to 6"] == [row for row in read.rows if row[0] == "5 to 6"]
    for gone in ("users", "valid full"):
        save_file({key: value for key, value in kept.items() if key != gone}, ranks)
        Reader(report_of(old))
    ranks.write_bytes(b"")
    Reader(report_of(old))
    ranks.unlink()
    assert "Users" not in Reader(report_of(old)).text


def test_a_result_without_newer_fields_has_a_report(folder):
    result = copy.deepcopy(folder.result())
    for key in ("selection", "engine", "machine"):
        del result[key]
    (folder.path / "result.json").write_text(json.dumps(result))
    Reader(report_of(folder))
