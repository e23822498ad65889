"""The run loop: its contract, and that an interrupted run ends as if it had never stopped."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

import federec as fr
from federec.checks.runs import outcome, resumed
from federec.errors import UserError
from federec.evaluation.selection import Selection
from federec.methods.registry import METHODS
from federec.plugins.registry import build
from federec.runs import folder as folders
from federec.runs.best import Best
from federec.runs.folder import RunFolder
from federec.runs.group import Group
from federec.runtimes.engines import Fused
from federec.runtimes.local import run

KEYS = {
    *("method", "plugins", "protocol", "seed", "rounds", "best_round", "data", "valid", "test", "views"),
    *("selection", "engine", "seconds", "peak_rss_mb", "communication", "config", "versions", "machine"),
}

# method, settings, rounds, participation: rows tuned in the round, sparse rounds, central, row stores
RUNS = {
    "pfedrec": ({"dim": 4, "item_lr_factor": 1.0}, 4, 1.0),
    "pfedrec-some": ({"dim": 4, "item_lr_factor": 1.0}, 3, 0.3),
    "pfedrec-fused": ({"dim": 4, "item_lr_factor": 1.0}, 3, 0.6),
    "fedmf": ({"dim": 4}, 3, 0.5),
    "ials": ({"dim": 4}, 3, 1.0),
    "ease": ({"l2": [1.0, 2.0, 3.0]}, 3, 1.0),
    "local-only": ({"dim": 4, "item_lr_factor": 1.0}, 3, 0.5),
    "local-only-fused": ({"dim": 4, "item_lr_factor": 1.0}, 3, 0.5),
    "negative-count": ({}, 3, 1.0),
    "fedsasrec": ({"dim": 4, "window": 6, "warm_up": 1}, 3, 0.5),
    "fedrap": ({"dim": 4, "item_lr": 3.0, "epochs": 2}, 4, 0.6),
    "fedrap-fused": ({"dim": 4, "item_lr": 3.0, "epochs": 2}, 4, 0.6),
}


def method_of(name):
    return build(name.removesuffix("-some").removesuffix("-fused"), (), RUNS[name][0])


def engine_of(name):
    return "fused" if name.endswith("-fused") else "torch" if name[:2] in ("pf", "fe") else "auto"


def start(name, data, out, on_round=None):
    _, rounds, participation = RUNS[name]
    given = {"rounds": rounds, "participation": participation, "engine": engine_of(name), "seed": 3}
    return fr.train(method_of(name), data, **given, out=out, on_round=on_round)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data(random_split):
    return random_split(users=12, items=40).data


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """The outcome of each run, uninterrupted; made when first asked for."""
    known = {}

    def get(name):
        if name not in known:
            path = tmp_path_factory.mktemp("whole") / name
            start(name, data, path)
            known[name] = outcome(path)
        return known[name]

    return get


def test_the_contract_of_a_run_folder(tmp_path, data):
    run = start("pfedrec", data, tmp_path / "run")
    lines, result, files, names = outcome(tmp_path / "run")
    assert names == ["config.yaml", "model", "report.html", "result.json", "rounds.jsonl"]
    assert run.result.keys() == KEYS
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert result["data"].keys() >= {"name", "users", "items", "interactions", "sha256"}
    assert result["data"]["users"] == 12
    assert len(result["data"]["sha256"]) == 64
    assert result["data"]["merged_duplicates"] == 0
    for part in ("valid", "test"):
        for kind in ("sampled", "full"):
            assert {"hr@10", "ndcg@10"} <= result[part][kind].keys()
            assert all(0 <= value <= 1 for value in result[part][kind].values())
    assert result["views"].keys() == {"own", "global", "random"}
    assert run.result["seconds"].keys() >= {"total", "compile", "train", "evaluate", "per_round"}
    assert result["communication"]["up_bytes_per_device_round"] > 0
    assert {name.split(".")[1] for name in files} == {"json", "safetensors"}
    assert "<h1>pfedrec on small</h1>" in (tmp_path / "run" / "report.html").read_text()


def test_getting_kernels_ready_is_told_apart(data):
    run = start("pfedrec-fused", data, None)
    first, *others = (line["seconds"] for line in run.history)
    assert first["compile"] > 0 and all(seconds.keys() == {"train", "evaluate"} for seconds in others)
    spent = run.result["seconds"]
    assert spent["compile"] == first["compile"]
    assert spent["total"] == pytest.approx(spent["compile"] + spent["train"] + spent["evaluate"])


def test_the_best_round_is_the_first_of_the_best_on_validation(tmp_path, data):
    for name in RUNS:
        run = start(name, data, None)
        values = [line["valid_full"]["ndcg@10"] for line in run.history]
        assert run.result["best_round"] == [value > max(values) - 1e-4 for value in values].index(True) + 1
        best = run.history[run.result["best_round"] - 1]
        assert run.valid["sampled"] == pytest.approx(best["valid"])
        assert run.test["sampled"] == pytest.approx(best["test"])


def test_a_run_is_selected_by_the_metric_it_names(data):
    run = fr.train(method_of("fedmf"), data, rounds=4, seed=3, engine="torch", select="sampled.mrr@20")
    values = [line["valid"]["mrr@20"] for line in run.history]
    assert run.result["selection"] == {"metric": "sampled.mrr@20", "value": pytest.approx(max(values))}
    assert not any("valid_full" in line for line in run.history)  # nobody needs it


def test_a_patient_run_ends_early_and_where_a_resumed_one_does(tmp_path, data):
    """The best round of a run that moves at first, and then not at all."""
    given = {"rounds": 40, "seed": 3, "engine": "torch", "select": "sampled.hr@10", "patience": 3}
    run = fr.train(method_of("fedmf"), data, **given, out=tmp_path / "whole")
    assert len(run.history) == run.result["best_round"] + 3 < 40

    def stop(line, rounds):
        if line["round"] == len(run.history) - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.train(method_of("fedmf"), data, **given, out=tmp_path / "part", on_round=stop)
    assert len(fr.resume(tmp_path / "part", data).history) == len(run.history)
    (tmp_path / "whole" / "result.json").unlink()  # stopped after the last round, before the result
    assert len(fr.resume(tmp_path / "whole", data).history) == len(run.history)


def test_a_kernel_that_is_compiled_meanwhile_does_not_change_a_run(tmp_path, data, monkeypatch):
    """The engine of a run is chosen once: the rounds after a resume are played by that of those before."""
    monkeypatch.setattr("federec.runtimes.simulation._LOADABLE", 0)
    monkeypatch.setattr(Fused, "compiled", lambda *_: False)

    def stop(line, rounds):
        monkeypatch.setattr(Fused, "compiled", lambda *_: True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.train(method_of("fedmf"), data, rounds=2, out=tmp_path / "run", on_round=stop)
    run = fr.resume(tmp_path / "run", data)
    assert [line["engine"] for line in run.history] == ["torch", "torch"]
    assert run.result["engine"] == {"used": "torch", "reason": "the run is too short to repay compiling a kernel"}
    assert run.trainer.engine_choice.used == "torch"


@pytest.mark.parametrize(("name", "patience"), [("fedmf", 2), ("fedmf", 9), ("fedmf", 15), ("ncf", 9)])
def test_patience_counts_rounds_that_were_ranked(tmp_path, random_split, monkeypatch, name, patience):
    """A run that is not ranked in every round ends in one that was, and so does a resumed one."""
    data = random_split(users=12, items=400).data
    monkeypatch.setattr("federec.runtimes.simulation.Selection", Sparse)
    method, given = METHODS[name](dim=4, lr=1e-9), {"rounds": 200, "engine": "torch", "patience": patience}
    run = fr.train(method, data, **given, out=tmp_path / "whole")
    ranked = [line["round"] for line in run.history if "valid_full" in line]
    assert run.result["best_round"] == 1 and len(run.history) == ranked[-1] < 200
    assert len(ranked) < len(run.history) or patience == 2
    waited = [round_ for round_ in ranked if 1 < round_ <= 1 + patience]
    assert len(waited) >= min(4, patience) and ranked[-2] < 1 + patience <= ranked[-1]

    def stop(line, rounds):
        if line["round"] == len(run.history) - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.train(method, data, **given, out=tmp_path / "part", on_round=stop)
    assert len(fr.resume(tmp_path / "part", data).history) == len(run.history)


class Sparse(Selection):
    """As of a run in which ranking takes long."""

    def __init__(self, evaluator, seed, samples, *others, **named):
        super().__init__(evaluator, seed, 0.0, *others, **named)


def test_a_run_of_an_older_version_goes_on_choosing_as_it_began(tmp_path, data):
    start("fedmf", data, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("select:")]
    config.write_text("\n".join(lines))
    assert RunFolder(tmp_path / "run").config().select == "sampled.hr@10"


def test_a_folder_without_a_value_of_its_best_round_goes_on(tmp_path, data):
    """As written where no user is evaluated."""
    point = start("fedmf", data, tmp_path / "run").point
    folder = RunFolder(tmp_path / "run")
    folder.save(replace(point, best=Best(1, None, 1), best_state=point.state, best_from=None))
    assert folder.checkpoint().best == Best(1, None, 1)


def test_the_result_says_which_engine_played_and_why(data):
    assert start("pfedrec-fused", data, None).result["engine"] == {
        "used": "fused",
        "reason": "the run asks for engine 'fused'",
    }
    short = fr.train(fr.PFedRec(dim=4), data, rounds=1).result["engine"]
    assert short == {"used": "torch", "reason": "the run is too short to repay compiling a kernel"}
    without = fr.train(build("fedals", (), {"dim": 4}), data, rounds=1).result["engine"]
    assert without == {"used": "torch", "reason": "no kernel plays 'fedals'"}
    central = fr.train("popularity", data, rounds=1).result["engine"]
    assert central == {"used": "torch", "reason": "no kernel plays 'popularity'"}
    clipped = fr.train(fr.PFedRec(dim=4), data, rounds=1, channel=["clip:norm=1"]).result["engine"]
    assert clipped["reason"] == "stage 'clip' works on single updates, and kernels only give their sum"
    with pytest.raises(
        UserError, match="cannot run on the fused engine: aggregator 'touched-mean' needs single updates"
    ):
        fr.train(fr.PFedRec(dim=4), data, rounds=1, aggregator="touched-mean", engine="fused")


def test_a_seed_decides_everything(tmp_path, data, whole):
    start("pfedrec", data, tmp_path / "again")
    assert outcome(tmp_path / "again") == whole("pfedrec")
    other = fr.train(fr.PFedRec(dim=4, item_lr_factor=1.0), data, rounds=4, seed=4)
    assert [line["loss"] for line in other.history] != [line["loss"] for line in whole("pfedrec")[0]]


@pytest.mark.parametrize("name", RUNS)
def test_resumed_after_every_round(tmp_path, data, name):
    _, rounds, participation = RUNS[name]
    assert resumed(method_of(name), data, tmp_path, rounds, participation, engine_of(name))


class Killed(BaseException):
    """Like SIGKILL: nothing tidies up after it."""


def kill_at(monkeypatch, number, half):
    """Die at the number-th write of the run folder, half way through it or just after it."""
    count = 0

    def dies(path, text):
        nonlocal count
        count += 1
        if count == number and half:
            path.write_bytes(text[: len(text) // 2])
            raise Killed
        return count == number

    def write(path, content):
        pieces = content if not isinstance(content, bytes | str) else [content]
        text = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
        died = dies(path.with_name(f"{path.name}.123.part"), text)
        path.write_bytes(text)
        if died:
            raise Killed

    def add_line(self, line):
        path, text = self.path / "rounds.jsonl", folders._line(line)
        before = path.read_bytes() if path.exists() else b""
        died = dies(path, before + text.encode()[: len(text) // 2] + b"\xff" + b" " * (len(before) + len(text)))
        path.write_bytes(before + text.encode())
        if died:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(folders, "write_atomic", write)
        patch.setattr(RunFolder, "add_line", add_line)
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("name", ["pfedrec-some", "ials", "negative-count"])
def test_killed_at_every_write(tmp_path, data, whole, monkeypatch, name, half):
    number = 0
    while True:
        number += 1
        path = tmp_path / str(number)
        patched = kill_at(monkeypatch, number, half)
        next(patched)
        try:
            start(name, data, path)
            break  # fewer writes than that
        except Killed:
            pass
        finally:
            next(patched, None)
        if (path / "config.yaml").exists():
            fr.resume(path, data)
        else:
            start(name, data, path)
            for scrap in path.glob("*.part"):
                scrap.unlink()
        assert outcome(path) == whole(name)
    assert number > 3 * RUNS[name][1]


def test_scraps_beyond_the_checkpoint_are_swept_away(tmp_path, data, whole):
    def stop(line, rounds):
        if line["round"] == 2:
            raise KeyboardInterrupt

    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        start("pfedrec", data, path, on_round=stop)
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3}\n{"round": 4, "lo')
    for scrap in ("model/state-3.safetensors", "model/model.json.9.part", "report.html.9.part"):
        (path / scrap).write_bytes(b"garbage")
    fr.resume(path, data)
    assert outcome(path) == whole("pfedrec")


def test_resuming_a_finished_run_changes_nothing(tmp_path, data, whole):
    start("ials", data, tmp_path / "run")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    run = fr.resume(tmp_path / "run", data)
    assert run.result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


class Restarted(Group):
    """A process that was started again, as torchrun does it."""

    restarts = True


def test_a_command_that_is_started_again_continues_its_own_run(tmp_path, data, whole):
    def stop(line, rounds):
        if line["round"] == 2:
            raise KeyboardInterrupt

    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        start("pfedrec", data, folder.path, on_round=stop)
    config = folder.config()
    with pytest.raises(UserError, match="holds a run with other settings; choose another folder"):
        run(config.model_copy(update={"seed": 4}), data, folder, group=Restarted())
    for played in ([3, 4], []):  # a finished run plays nothing
        seen = []
        run(config, data, folder, lambda line, _, seen=seen: seen.append(line["round"]), Restarted())
        assert seen == played
        assert outcome(folder.path) == whole("pfedrec")


def test_other_data_cannot_be_resumed_on(tmp_path, data):
    def stop(line, rounds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start("pfedrec", data, tmp_path / "run", on_round=stop)
    with pytest.raises(fr.UserError, match="has changed since"):
        fr.resume(tmp_path / "run", replace(data, items=data.items[::-1].copy()))


def test_a_diverging_run_writes_json_and_ranks_worst(tmp_path, data):
    fr.train(fr.PFedRec(dim=4, lr=1e30), data, rounds=3, out=tmp_path / "run")
    lines, result, _, _ = outcome(tmp_path / "run")
    assert lines[-1]["loss"] is None
    assert lines[-1]["valid"]["hr@20"] == lines[-1]["test"]["hr@20"] == 0
    assert result["best_round"] < 3


@pytest.mark.parametrize("name", ["popularity", "ease"])
def test_a_method_that_sends_nothing_has_no_traffic(data, name):
    run = fr.train(name, data, rounds=1)
    assert set(run.result["communication"].values()) == {None}
    assert run.result["views"] == {}


def test_plugins_by_name(data):
    run = fr.train("fedmf", data, rounds=1, plugins=["dualper"])
    assert (run.result["method"], run.result["plugins"]) == ("fedmf", ["dualper"])
    assert "own" in run.result["views"]


def test_a_run_that_cannot_start_writes_nothing(tmp_path, data):
    with pytest.raises(fr.UserError, match="did you mean"):
        fr.train("pfedrek", data, out=tmp_path / "run")
    with pytest.raises(fr.UserError, match="no GPU 'cuda:99' is usable"):
        fr.train("pfedrec", data, device="cuda:99", out=tmp_path / "run")
    few = np.array([0, 0, 1, 1], np.int32)
    short = replace(data, users=few, items=np.array([0, 1, 0, 1], np.int32), times=None, user_ids=np.arange(2))
    with pytest.raises(fr.UserError, match="has 3 distinct items"):
        fr.train("pfedrec", short, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_stage_or_plugin_needs_no_list(data):
    given = {"rounds": 1, "engine": "torch"}
    run = fr.train("fedmf", data, **given, channel=[fr.Clip(norm=1.0)], plugins=[fr.SAM()])
    for channel, plugins in ((fr.Clip(norm=1.0), fr.SAM()), ("clip:norm=1", "sam"), (fr.Clip, fr.SAM)):
        alone = fr.train("fedmf", data, **given, channel=channel, plugins=plugins)
        assert alone.config == run.config and alone.test == run.test


def test_a_missing_gpu_is_told_in_words_for_python_and_the_command_line(data, monkeypatch):
    monkeypatch.setattr("federec.runtimes.local.usable", lambda _: False)
    with pytest.raises(UserError, match="no GPU 'cuda' is usable here; train on device cpu") as refused:
        fr.train("fedmf", data, device="cuda")
    assert "--" not in str(refused.value)


def test_the_method_that_a_run_chose_is_logged_with_the_reason(data, caplog):
    with caplog.at_level("INFO", "federec"):
        assert fr.train(data=data).method.name == "fedease"
    assert "method fedease: closed form" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "federec"):
        fr.train("popularity", data)
    assert "method" not in caplog.text
