"""Runs whose states are large: stored now and then, never copied, and the same to the last bit."""

import json
import os
import signal

import pytest
import torch

import federec as fr
from federec.cohort import memory
from federec.runs import checkpointing, folder
from federec.runs.best import Best

ROUNDS = 6


@pytest.fixture(scope="module")
def data(random_split):
    return random_split(users=12, items=40).data


@pytest.fixture(params=[memory.FRACTION, 0.0], ids=["in memory", "in files"])
def _large(monkeypatch, request):
    """Every state is large, and storing it takes so long that only the first and the last are stored."""
    monkeypatch.setattr(memory, "FRACTION", request.param)
    for module in (folder, checkpointing):
        monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(checkpointing, "FRACTION", 1e-9)


def start(data, out, on_round=None):
    method = fr.FedRAP(dim=4, lr=0.1, item_lr=30.0, epochs=2)
    return fr.train(method, data, rounds=ROUNDS, seed=8, participation=0.7, engine="torch", out=out, on_round=on_round)


@pytest.fixture(scope="module")
def plain(data):
    """A run of small states; its best round is neither the first nor the last."""
    run = start(data, None)
    assert 2 < run.result["best_round"] < ROUNDS
    return run


def stored(path):
    return sorted(file.name for file in (path / "model").glob("state-*"))


def same(run, plain, path):
    """Same figures and same best model, in memory and as loaded, and one state in the folder."""
    for part in ("best_round", "valid", "test", "communication"):
        assert run.result[part] == plain.result[part]
    assert [line["test"] for line in run.history] == [line["test"] for line in plain.history]
    expected = plain.point.best_state.tensors()
    for point in (run.point, fr.Run.load(path, run.data).point):
        found = point.best_state.tensors()
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert stored(path) == [f"state-{plain.result['best_round']}.safetensors"]
    assert run.recommend(0) == plain.recommend(0)


@pytest.mark.usefixtures("_large")
def test_the_best_round_is_recomputed(tmp_path, data, plain, monkeypatch):
    seen = []
    copied = []
    monkeypatch.setattr(fr.federation.state.State, "copy", lambda self: copied.append(self))
    run = start(data, tmp_path / "run", on_round=lambda line, rounds: seen.append(stored(tmp_path / "run")))
    monkeypatch.undo()
    assert seen[:-1] == [["state-1.safetensors"]] * (ROUNDS - 1)
    assert seen[-1] == ["state-1.safetensors", f"state-{ROUNDS}.safetensors"]
    assert not copied
    same(run, plain, tmp_path / "run")


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize(("error", "kept"), [(KeyboardInterrupt, 3), (MemoryError, 1)])
def test_interrupted_a_run_stores_its_last_round_and_killed_it_plays_again(tmp_path, data, plain, error, kept):
    path, played = tmp_path / "run", []

    def stop(line, rounds):
        if line["round"] == 3:
            raise error

    with pytest.raises(error):
        start(data, path, on_round=stop)
    assert json.loads((path / "model" / "model.json").read_text())["round"] == kept
    run = fr.resume(path, data, on_round=lambda line, rounds: played.append(line["round"]))
    assert played == [*range(kept + 1, ROUNDS + 1)]
    same(run, plain, path)


@pytest.fixture
def _listening():
    """Ctrl-C arrives even where the parent process ignores it, as a shell does for its background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_large", "_listening")
def test_ctrl_c_waits_for_the_round_where_one_would_be_lost(tmp_path, data, plain, monkeypatch):
    path, play = tmp_path / "run", fr.runtimes.simulation.DeviceTrainer.play

    def interrupted(self, round_):
        if round_ == 4:  # round 1 is stored, 2 and 3 are not
            os.kill(os.getpid(), signal.SIGINT)
        return play(self, round_)

    monkeypatch.setattr(fr.runtimes.simulation.DeviceTrainer, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(data, path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(fr.runtimes.simulation.DeviceTrainer, "play", play)
    assert json.loads((path / "model" / "model.json").read_text())["round"] == 4
    same(fr.resume(path, data), plain, path)


@pytest.mark.usefixtures("_listening")
def test_ctrl_c_does_not_wait_where_everything_is_stored(tmp_path, data, monkeypatch):
    path, play = tmp_path / "run", fr.runtimes.simulation.DeviceTrainer.play

    def interrupted(self, round_):
        if round_ == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return play(self, round_)

    monkeypatch.setattr(fr.runtimes.simulation.DeviceTrainer, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(data, path)
    assert json.loads((path / "model" / "model.json").read_text())["round"] == 3


def test_storing_takes_a_fraction_of_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpointing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpointing, "LARGE", -1)

    class Slow:
        def add_line(self, line):
            pass

        def save(self, point):
            now[0] += 2.0  # seconds

    store, stored_in = checkpointing.Checkpointing(Slow(), 0), []
    state = fr.federation.state.State({})
    for round_ in range(1, 31):
        now[0] += 10.0
        due = store.due(state)
        store.end({}, folder.Checkpoint(round_, state, Best(1, 0.5, 1), None, "", 1), due)
        stored_in += [round_] if due else []
    assert stored_in == [1, 5, 9, 13, 17, 21, 25, 29]  # 2 seconds in 40
