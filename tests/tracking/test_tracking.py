"""Runs that TensorBoard and MLflow show, read with their own readers."""

import json
import os
import shutil
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

import federec as fr
from federec.runs import checkpointing, folder
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runs.group import Group
from federec.runtimes.local import run as play
from federec.tracking import mlflow as mlflow_tracker
from federec.tracking import tensorboard as tensorboard_tracker
from federec.tracking.base import settings_of, versions

ROUNDS = 5


@pytest.fixture(scope="module")
def data(random_split):
    made = random_split(users=12, items=40).data
    return replace(made, user_ids=np.array([f"person-{code}" for code in range(made.n_users)]))


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An empty database of MLflow: making it takes seconds, so tests copy it."""
    mlflow = pytest.importorskip("mlflow", reason="pip install federec[mlflow]")
    pytest.importorskip("alembic", reason="pip install federec[mlflow]")
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


class Board:
    """Reads what TensorBoard shows of a run."""

    def __init__(self, tmp_path):
        pytest.importorskip("tensorboard", reason="pip install federec[tensorboard]")
        self.tracker, self.log = fr.TensorBoard(), tensorboard_tracker._Events
        self.path = tmp_path / "run"

    def empty(self):
        return not self.path.exists()

    def curves(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        read = EventAccumulator(str(self.path)).Reload()
        return {name: [(each.step, each.value) for each in read.Scalars(name)] for name in read.Tags()["scalars"]}

    def settings(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        content = EventAccumulator(str(self.path)).Reload().PluginTagToContent("hparams")
        values = HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info.hparams
        return {name: value.string_value or value.number_value for name, value in values.items()}


class Store:
    """Reads what MLflow shows of a run."""

    def __init__(self, database):
        from mlflow import MlflowClient

        self.tracker, self.log = fr.MLflow(uri=f"sqlite:///{database}", experiment="films"), mlflow_tracker._Logged
        self.client = MlflowClient(self.tracker.uri)

    def empty(self):
        return self.client.get_experiment_by_name("films") is None

    def run(self):
        [found] = self.client.search_runs([self.client.get_experiment_by_name("films").experiment_id])
        return found

    def curves(self):
        found = self.run()
        curves = {name: self.client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
        values = {name.replace("_at_", "@"): [(each.step, each.value) for each in curves[name]] for name in curves}
        return {name: sorted(steps) for name, steps in values.items()}

    def settings(self):
        return self.run().data.params


@pytest.fixture
def store(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # there MLflow keeps files
    return Store(shutil.copy(database, tmp_path))


@pytest.fixture(params=["tensorboard", "mlflow"])
def reader(request, tmp_path):
    return Board(tmp_path) if request.param == "tensorboard" else request.getfixturevalue("store")


def start(data, out=None, **how):
    method = fr.FedMF(dim=4, batch=8) | fr.PLGC()
    return fr.train(method, data, rounds=ROUNDS, seed=3, engine="torch", out=out, channel="clip:norm=1", **how)


def stop(line, rounds):
    if line["round"] == 3:
        raise KeyboardInterrupt


def measured(run):
    """Figures without what takes another time in each run."""
    times = ("seconds", "peak_rss_mb")
    history = [{key: value for key, value in line.items() if key not in times} for line in run.history]
    return history, {key: value for key, value in run.result.items() if key not in times}


def test_a_reader_has_every_round_and_the_outcome_and_the_run_is_the_same(reader, data, tmp_path):
    run = start(data, tmp_path / "run", track=reader.tracker)
    assert measured(run) == measured(start(data))
    curves = reader.curves()
    for line in run.history:
        shown = {name: values[line["round"] - 1] for name, values in curves.items() if len(values) == ROUNDS}
        notes = line["notes"]
        expected = {
            "loss": line["loss"],
            "valid/hr@10": line["valid"]["hr@10"],
            "test/ndcg@5": line["test"]["ndcg@5"],
            "valid_full/ndcg@10": line["valid_full"]["ndcg@10"],
            "up_bytes": line["up_bytes"],
            "seconds/train": line["seconds"]["train"],
            "notes/mixing weight": notes["mixing weight"],
            "notes/items: effective rank": notes["items: effective rank"],
        }
        for name, value in expected.items():
            assert shown[name] == (line["round"], pytest.approx(value, rel=1e-6)), name
    assert not any("spectrum" in name or "singular" in name for name in curves)  # lists are no curves
    test, best = run.result["test"], run.result["best_round"]
    outcome = {
        "result/test.full.ndcg@10": test["full"]["ndcg@10"],
        "result/test.sampled_light.hr@10": test["sampled_light"]["hr@10"],
        "result/selection.value": run.result["selection"]["value"],
        "result/seconds.total": run.result["seconds"]["total"],
        "result/privacy.clip": 1.0,
    }
    for name, value in outcome.items():
        assert curves[name] == [(best, pytest.approx(value, rel=1e-6))], name


def test_a_reader_has_the_settings(reader, data, tmp_path):
    start(data, tmp_path / "run", track=[reader.tracker])
    settings = {name: str(value) for name, value in reader.settings().items()}
    expected = {"method": "fedmf", "plugins": '["plgc"]', "settings.mix": "ntk", "channel": "clip:norm=1.0"}
    assert expected.items() <= settings.items()
    assert float(settings["settings.dim"]) == 4 and float(settings["seed"]) == 3


def test_a_resumed_run_goes_on_where_it_was(reader, data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start(data, tmp_path / "run", track=reader.tracker, on_round=stop)
    assert [step for step, _ in reader.curves()["loss"]] == [1, 2, 3]
    run = fr.resume(tmp_path / "run", data)
    assert measured(run) == measured(start(data))
    curves = reader.curves()
    assert [step for step, _ in curves["loss"]] == [1, 2, 3, 4, 5]
    assert len(curves["result/best_round"]) == 1


def test_rounds_that_are_played_again_are_logged_once(reader, data, tmp_path, monkeypatch):
    for module in (folder, checkpointing):  # states are stored after the first round and the last
        monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(checkpointing, "FRACTION", 1e-9)
    given = {"rounds": ROUNDS, "seed": 8, "engine": "torch"}

    def crash(line, rounds):
        if line["round"] == 4:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fr.train(fr.FedRAP(dim=4), data, **given, out=tmp_path / "run", track=reader.tracker, on_round=crash)
    played = []
    fr.resume(tmp_path / "run", data, on_round=lambda line, rounds: played.append(line["round"]))
    assert played[0] < 4
    assert [step for step, _ in reader.curves()["loss"]] == [1, 2, 3, 4, 5]


def test_a_tracker_that_fails_says_so_once_and_has_everything_after_a_resume(reader, data, tmp_path, monkeypatch):
    def fail(self, line):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(reader.log, "round", fail)
        with pytest.raises(KeyboardInterrupt):
            start(data, tmp_path / "run", track=reader.tracker, on_round=stop)
    said = [str(each.message) for each in caught if "No space" in str(each.message)]
    name = reader.tracker.name
    assert said == [f"{name} logs no more of this run, which goes on: [Errno 28] No space left on device"]
    fr.resume(tmp_path / "run", data)
    assert [step for step, _ in reader.curves()["loss"]] == [1, 2, 3, 4, 5]


def test_a_tracker_that_cannot_begin_does_not_stop_a_run(reader, data, tmp_path, monkeypatch):
    monkeypatch.setattr(reader.log, "__init__", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match=f"{reader.tracker.name} logs no more of this run"):
        run = start(data, tmp_path / "run", track=reader.tracker)
    assert measured(run) == measured(start(data))


def test_a_missing_package_is_named_before_anything_is_written(reader, data, tmp_path, monkeypatch):
    name = reader.tracker.name
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(fr.UserError, match=rf"needs the package {name}; install it with: pip install 'federec\[{name}"):
        start(data, tmp_path / "run", track=reader.tracker)
    assert not (tmp_path / "run").exists()


def test_only_the_first_process_tracks(reader, data, tmp_path):
    class Second(Group):
        rank = 1

    method = fr.Popularity()
    play(RunConfig.of(method, data), data, RunFolder(tmp_path / "run"), None, Second(), method, reader.tracker)
    assert reader.empty()


def test_mlflow_gets_the_report_without_single_users_and_the_versions(data, tmp_path, store):
    start(data, tmp_path / "run", track=store.tracker)
    found = store.run()
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.tags["federec"] == fr.__version__ and "torch" in found.data.tags
    assert "mlflow.user" not in found.data.tags
    from mlflow.artifacts import load_text

    report = load_text(f"{found.info.artifact_uri}/report.html")
    assert "fedmf+plgc" in report
    assert "person-" not in report and "person-" in (tmp_path / "run" / "report.html").read_text()


def test_mlflow_says_that_a_run_was_stopped(data, tmp_path, store):
    with pytest.raises(KeyboardInterrupt):
        start(data, tmp_path / "run", track=store.tracker, on_round=stop)
    assert store.run().info.status == "KILLED"
    [kept] = json.loads((tmp_path / "run" / "tracking.json").read_text())
    assert kept["run_id"] == store.run().info.run_id
    fr.resume(tmp_path / "run", data)
    assert store.run().info.status == "FINISHED"


def test_mlflow_sends_nothing_home_and_waits_for_no_server(data):
    pytest.importorskip("mlflow", reason="pip install federec[mlflow]")
    mlflow_tracker._mlflow()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    with pytest.warns(UserWarning, match="mlflow logs no more"):
        fr.train("popularity", data, track=fr.MLflow(uri="http://127.0.0.1:9"))


def test_a_folder_of_event_files_belongs_to_one_run(data, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install federec[tensorboard]")
    tracker = fr.TensorBoard(folder=str(tmp_path / "logs"))
    start(data, track=tracker)
    with pytest.raises(fr.UserError, match="logs: has the event files of another run; name another folder"):
        start(data, track=tracker)
    with pytest.raises(fr.UserError, match="TensorBoard needs a folder; give"):
        start(data, track="tensorboard")


@pytest.mark.parametrize(
    ("track", "words"),
    [
        ("tensorbord", "unknown tracker 'tensorbord' - did you mean 'tensorboard'?"),
        ("mlflow:uri", "tracker 'mlflow:uri': write it as NAME or NAME:KEY=VALUE,KEY=VALUE"),
        (["mlflow:experment=a"], "'mlflow' has no setting 'experment' - did you mean 'experiment'?"),
        (3, r"track=3: give trackers, such as \[fr.TensorBoard\(\)\]"),
        ([3], "3 is no tracker; give trackers"),
    ],
)
def test_a_wrong_tracker_is_refused(data, track, words):
    with pytest.raises(fr.UserError, match=words.replace("?", r"\?")):
        start(data, track=track)


def test_damaged_trackers_are_refused(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start(data, tmp_path / "run", on_round=stop)
    (tmp_path / "run" / "tracking.json").write_text("[3]")
    with pytest.raises(fr.UserError, match=r"tracking.json: is damaged; remove it"):
        fr.resume(tmp_path / "run", data)


def test_settings_without_a_value_are_left_out():
    config = {
        "method": "fedmf",
        "select": None,
        "plugins": [],
        "channel": [],
        "settings": {"hidden": [8, 4]},
        "seed": 0,
    }
    assert settings_of(config) == {"method": "fedmf", "settings.hidden": "[8, 4]", "seed": 0}


def test_a_folder_without_git_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert versions() == {"federec": fr.__version__}
    monkeypatch.setenv("PATH", "")
    assert versions() == {"federec": fr.__version__}
