"""compare, recommend, methods, data, doctor."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from federec.methods import references
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS


@pytest.fixture
def popular(federec, tmp_path, ratings):
    assert federec("train", "popularity", "--data", ratings, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_recommend_refuses(refused, federec, tmp_path, popular, ratings):
    assert "user 'u99' is not in this data set - did you mean 'u9'?" in refused("recommend", popular, "--user", "u99")
    assert "k=0: give a whole number of at least 1" in refused("recommend", popular, "--user", "u1", "-k", 0)
    assert "is not a run folder" in refused("recommend", tmp_path, "--user", "u1")
    (popular / "result.json").unlink()
    said = refused("recommend", popular, "--user", "u1")
    assert f"is not finished; continue it with: federec train --resume {popular}" in said


def test_recommend_with_nothing_to_recommend(refused, federec, tmp_path):
    data = tmp_path / "all.csv"
    data.write_text("user,item\n" + "".join(f"u{user},i{item}\n" for user in range(3) for item in range(4)))
    assert federec("train", "popularity", "--data", data, "--out", tmp_path / "run").code == 0
    assert "there is nothing left to recommend" in refused("recommend", tmp_path / "run", "--user", "u1")


def test_titles(federec, tmp_path):
    assert federec("train", "popularity", "--out", tmp_path / "run", "-q").code == 0
    assert "title" in federec("recommend", tmp_path / "run", "--user", 1).out
    assert "title" not in federec("recommend", tmp_path / "run", "--user", 1, "--no-titles").out


def test_compare_shows_the_runs_and_leaves_out_unfinished_ones(federec, tmp_path, ratings, popular):
    (tmp_path / "started").mkdir()
    (tmp_path / "started" / "config.yaml").write_text((popular / "config.yaml").read_text())
    said = federec("compare", popular, tmp_path / "started", ratings)
    assert said.code == 0
    assert "popularity" in said.out
    assert (
        said.err == f"left out: {tmp_path / 'started'} is not finished; federec train --resume {tmp_path / 'started'}\n"
    )


def test_compare_says_how_many_folders_are_no_runs(federec, tmp_path, popular):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    said = federec("compare", popular, tmp_path / "a")
    assert (said.code, said.err) == (0, "left out: 1 folder that is no run\n")
    assert federec("compare", popular, tmp_path / "a", tmp_path / "b").err == "left out: 2 folders that are no run\n"


def test_compare_prints_what_the_comparison_says(federec, refused, tmp_path, ratings, popular):
    pytest.importorskip("federec.reproduction.compare")
    assert federec("train", "ease", "--data", ratings, "--out", tmp_path / "other", "-q").code == 0
    runs = ("compare", popular, tmp_path / "other")
    assert isinstance(json.loads(federec(*runs, "--json").out), list | dict)
    assert "popularity" in federec(*runs, "--csv").out.splitlines()[1]
    assert "tabular" in federec(*runs, "--latex").out
    assert "ease" in federec(*runs, "--intervals", "--baseline", popular, "--metric", "sampled.hr@10").out
    assert "baseline" in federec(*runs, "--baseline", popular).out
    assert "difference in sampled.hr@10" in federec(*runs, "--metric", "sampled.hr@10").out
    assert "choose one of" in refused(*runs, "--csv", "--json")


def test_compare_refuses(refused, federec, tmp_path, ratings, popular):
    assert "is not a run folder" in refused("compare", tmp_path / "gone")
    assert "no finished run among these" in refused("compare", ratings)
    for text in ("{", "[]", "{}", ""):
        (popular / "result.json").write_text(text)
        assert "result.json: is damaged; train again" in refused("compare", popular)


def test_methods(federec, refused):
    said = federec("methods").out
    assert all(name in said for name in METHODS)
    assert all(f"--with {name}" in said for name in PLUGINS)
    for name, method in {**METHODS, **PLUGINS}.items():
        said = federec("methods", name)
        assert said.code == 0
        assert all(field in said.out for field in method.model_fields)
        assert "Undefined" not in said.out
    assert "did you mean 'pfedrec'?" in refused("methods", "pfedrek")


def test_methods_of_installed_packages_are_listed_without_importing_them(federec, monkeypatch):
    point = EntryPoint("theirs", "nopackage.module:Theirs", "federec.methods")
    monkeypatch.setattr(references, "entry_points", lambda group: [point] if group == point.group else [])
    said = federec("methods")
    assert said.code == 0 and "from an installed package: nopackage.module:Theirs" in said.out


@pytest.mark.parametrize("place", [None, "/nowhere"])
def test_without_data_folders(federec, refused, tmp_path, monkeypatch, place):
    monkeypatch.delenv("FEDEREC_DATA", raising=False)
    if place:
        monkeypatch.setenv("FEDEREC_DATA", place)
    monkeypatch.setenv("FEDEREC_CACHE", str(tmp_path / "cache"))
    listed = federec("data", "list")
    assert listed.code == 0
    assert "not here; get it with: federec data get ml-100k" in listed.out
    assert "not here; take ratings.txt of FilmTrust (guoguibing" in listed.out
    rows = {row["name"]: row for row in json.loads(federec("data", "list", "--json").out)}
    assert (rows["tastes"]["where"], rows["ml-1m"]["where"]) == ("built in", None)
    checked = federec("doctor")
    assert checked.code == 0
    assert ("/nowhere (no such folder)" if place else "not set") in checked.out
    assert "federec data get ml-1m" in checked.out
    assert "get it with: federec data get ml-100k" in refused("train", "--data", "ml-100k", "--out", tmp_path / "run")
    assert "cannot be fetched; take" in refused("data", "get", "filmtrust")
    assert federec("data", "describe", "tastes").code == 0


@pytest.mark.parametrize("name", ["", "Haswell"])
def test_doctor_tells_what_slows_products_down(federec, monkeypatch, name):
    monkeypatch.setenv("OPENBLAS_CORETYPE", name)
    found = {row["name"]: row for row in json.loads(federec("doctor", "--json").out)}
    assert ("OPENBLAS_CORETYPE" in found) is bool(name)
    assert not name or name in found["OPENBLAS_CORETYPE"]["found"]


def test_data_refuses(refused, federec, ratings):
    assert "did you mean 'tastes'?" in refused("data", "describe", "taste")
    assert "did you mean 'ml-100k'?" in refused("data", "get", "ml-100")
    assert "'tastes' is built in" in refused("data", "get", "tastes")
    assert federec("data", "describe", ratings).code == 0
    assert federec("data", "describe", ratings, "--k-core", -1).code == 2


def test_generated_data_is_described_and_trained_on(federec, refused, tmp_path):
    size = ("--users", 40, "--items", 60, "--interactions", 400)
    made = tmp_path / "made" / "up"
    said = federec("data", "generate", *size, "--out", made)
    assert said.code == 0 and "400 interactions of 40 users with 60 items" in said.out
    assert "400" in federec("data", "describe", made).out
    train = (
        "train",
        "popularity",
        "--data",
        tmp_path / "made" / "up",
        "--evaluate-users",
        7,
        "--out",
        tmp_path / "run",
    )
    assert federec(*train).code == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["data"]["evaluated_users"] == 7
    assert "exists already" in refused("data", "generate", *size, "--out", made)
    assert "do not suit" in refused("data", "generate", *size, "--users", 4000, "--out", tmp_path / "other")


def test_help_and_version(federec):
    for words in (
        (),
        ("check",),
        ("new", "method"),
        ("train",),
        ("compare",),
        ("recommend",),
        ("methods",),
        ("data",),
        ("doctor",),
    ):
        said = federec(*words, "--help")
        assert said.code == 0
        assert "Usage" in said.out
    assert federec("--version").out.startswith("federec 0.")
    assert "Name of a method; see `federec methods`" in federec("train", "--help").out
    said = federec("recommend", "--help").out
    assert "A run folder.  [required]" in said and "\\[" not in said


COMMANDS = ["", "new", "data", "device", "federation"]


@pytest.mark.parametrize("words", COMMANDS)
def test_no_line_of_a_list_of_commands_is_cut(federec, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    commands = federec(*words.split(), "--help").out.partition("Commands:")[2].splitlines()
    assert len(commands) > 2
    assert not [line for line in commands if line.endswith("...")]


def test_the_shell_completes_names(federec, monkeypatch):
    from federec.aggregators.registry import AGGREGATORS
    from federec.attackers.registry import ATTACKS
    from federec.cli import reproduce
    from federec.cli.names import AGGREGATORS as AGGREGATOR_NAMES
    from federec.cli.names import ATTACKS as ATTACK_NAMES
    from federec.cli.names import METHODS as METHOD_NAMES
    from federec.cli.names import METRICS, PRESETS, STAGES, TABLES, TRACKERS
    from federec.cli.names import PLUGINS as PLUGIN_NAMES
    from federec.cli.names import SETS as SET_NAMES
    from federec.data.sets import SETS
    from federec.evaluation.metrics import NAMES, RANKINGS
    from federec.methods.presets import presets
    from federec.reproduction import budget
    from federec.reproduction.grids import GRIDS
    from federec.stages import registry
    from federec.tracking import registry as tracking

    assert set(TRACKERS) == set(tracking.TRACKERS)
    assert (set(AGGREGATOR_NAMES), set(ATTACK_NAMES)) == (set(AGGREGATORS), set(ATTACKS))
    assert (set(STAGES), set(TABLES)) == (set(registry.STAGES), {*GRIDS, "summary", "figures", "all"})
    assert set(METRICS) == {f"{ranking}.{name}" for ranking in RANKINGS for name in NAMES}
    named = {name for method in METHODS for name in (*presets(method), *presets(method, ["dualper"]))}
    assert set(PRESETS) == {"clean", *named} and reproduce.TRIALS == budget.TRIALS
    assert (set(METHOD_NAMES), set(PLUGIN_NAMES), set(SET_NAMES)) == (set(METHODS), set(PLUGINS), set(SETS))
    assert "--install-completion" in federec("--help").out
    monkeypatch.setenv("_FEDEREC_COMPLETE", "complete_bash")
    for line, found in (
        ("federec train fede", "fedease"),
        ("federec train fedmf --with dua", "dualper"),
        ("federec tune fedmf --data ml-1m", "ml-1m"),
        ("federec trai", "train"),
        ("federec data describe ml-1m", "ml-1m"),
        ("federec data get ml-1m", "ml-1m"),
        ("federec check dua", "dualper"),
        ("federec reproduce pl", "plgc"),
        ("federec reproduce plgc --data ml-1m", "ml-1m"),
        ("federec device policy --method fede", "fedease"),
        ("federec device policy --with dua", "dualper"),
        ("federec train --select full.ndcg@1", "full.ndcg@10"),
        ("federec train --engine fu", "fused"),
        ("federec train --stage cl", "clip"),
        ("federec train --device cu", "cuda"),
        ("federec train fedease --preset rec", "recency"),
    ):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        assert federec().out.split() == [found]


def test_tables_as_json(federec, popular):
    rows = json.loads(federec("methods", "--json").out)
    assert {row["name"] for row in rows if row["kind"] == "method"} == set(METHODS)
    assert json.loads(federec("methods", "pfedrec", "--json").out)["settings"][0]["name"] == "batch"
    assert json.loads(federec("recommend", popular, "--user", "u1", "-k", 2, "--json").out)[1]["position"] == 2
    assert json.loads(federec("doctor", "--json").out)[0]["name"] == "federec"


def test_wrong_usage_is_one_line(federec, refused):
    assert refused("trian").count("Did you mean") == 1
    assert refused("data", "lst").count("Did you mean") == 1
    assert "No such option '--unknown'; see: " in refused("train", "--unknown")
    assert "is not a valid integer; see: " in refused("train", "--rounds", "many")
    assert "Missing argument 'METHOD'" in refused("tune")
    assert "Usage" in federec("data").err


@pytest.mark.thorough
def test_a_missing_extra_is_named_before_anything_is_run(tmp_path, ratings):
    out = str(tmp_path / "out")
    commands = {
        "optuna": ["tune", "fedmf", "--data", str(ratings), "--runs", out],
        "matplotlib": ["reproduce", "fedrap", "--data", str(ratings), "--out", out],
        "flwr": ["federation", "up", "--data", str(ratings), "--out", out],
        "cryptography": ["federation", "certificates", out, "--host", "localhost"],
    }
    script = f"""
import sys
from federec.cli.main import run
for package, words in {commands}.items():
    sys.modules[package] = None  # as if it were not installed
    sys.argv = ["federec", *words]
    try:
        run()
    except SystemExit as end:
        assert end.code == 2
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    lines = said.stderr.splitlines()
    assert [line.split(";")[0] for line in lines] == [f"error: this needs the package {name}" for name in commands]
    assert lines[0].endswith("pip install 'federec[results]'") and lines[3].endswith("pip install 'federec[device]'")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def compare_failing(federec, monkeypatch, popular):
    """Run a command in which this exception is raised."""
    from federec.runs.record import RunRecord

    def call(failure):
        def fail(self):
            raise failure

        monkeypatch.setattr(RunRecord, "result", fail)
        return federec("compare", popular)

    return call


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (PermissionError(13, "Permission denied", "/a/b"), "error: /a/b: Permission denied; check"),
        (OSError(5, "Input/output error"), "error: Input/output error; check"),
        (MemoryError(), "error: not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "error: not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "error: not enough memory"),
        (RuntimeError("CUDA error: out of memory"), "error: not enough memory"),
    ],
    ids=str,
)
def test_strange_failures_are_one_line(compare_failing, failure, says):
    said = compare_failing(failure)
    assert said.code == 2
    assert said.err.startswith(says)
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("size", [(30, 10**15), (30, 10**18), (30, 10**30)], ids=str)
def test_an_allocation_that_torch_refuses_is_one_line(compare_failing, size):
    with pytest.raises((RuntimeError, TypeError)) as refused:
        torch.empty(size)
    assert compare_failing(refused.value).err.startswith("error: not enough memory")


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("invalid memory format"),
        RuntimeError("Overflow when unpacking long"),
        TypeError("value overflows the stack; see memory_format"),
        OverflowError("int too large to convert to float"),
        ValueError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=str,
)
def test_an_error_that_only_mentions_memory_keeps_its_traceback(compare_failing, failure):
    with pytest.raises(type(failure)) as kept:
        compare_failing(failure)
    assert kept.value is failure


def test_all_of_a_result_is_json(popular):
    json.loads((popular / "result.json").read_text(), parse_constant=pytest.fail)
