import json
from typing import get_args

import pytest

from federec.cli.names import PRECISIONS
from federec.export.precision import Precision


@pytest.fixture(scope="module")
def run(tmp_path_factory, random_split, small):
    import federec as fr

    folder = tmp_path_factory.mktemp("export")
    rows = random_split(users=12, items=30).data
    lines = [f"u{user},i{item}" for user, item in zip(rows.users, rows.items, strict=True)]
    (folder / "ratings.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    fr.train(small("fedmf"), str(folder / "ratings.csv"), rounds=1, out=folder / "run", progress=False)
    return folder / "run"


def test_an_export_says_what_it_costs(federec, run, tmp_path):
    said = federec("export", run, "--format", "safetensors", "--precision", "int8", "--out", tmp_path / "out")
    assert said.code == 0 and "of float32" in said.out and "points lost" in said.out
    said = federec("export", run, "--format", "safetensors", "--user", "u1", "--out", tmp_path / "own", "--json")
    assert "holds private data of user 'u1'" in said.err and json.loads(said.out)["model"] == "model.safetensors"


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (["--format", "onx", "--out", "x"], "did you mean 'onnx'"),
        (["--format", "onnx", "--precision", "int4", "--out", "x"], "did you mean 'int8'"),
        (["--format", "web", "--user", "u1", "--out", "x"], "leave --user out"),
    ],
)
def test_wrong_flags_are_one_line(refused, run, given, remedy):
    assert remedy in refused("export", run, *given)


def test_a_folder_that_is_no_run_is_one_line(refused, tmp_path):
    for command in (["export", "--format", "onnx", "--out", tmp_path / "x"], ["serve"], ["evaluate"]):
        assert "is not a run folder" in refused(command[0], tmp_path, *command[1:])


def test_a_run_is_evaluated_again(federec, run):
    found = json.loads(federec("evaluate", run, "--json").out)
    assert found["now"] == found["result"]
    assert "a new device with 3 items" in federec("evaluate", run, "--cold-start").out


def test_names_are_those_of_the_code():
    assert set(PRECISIONS) == set(get_args(Precision))
