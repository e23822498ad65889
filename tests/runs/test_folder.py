"""What a run folder refuses, and that it says so in one line."""

import errno
import json
import os

import pytest

import federec as fr
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder


@pytest.fixture(scope="module")
def data(random_split):
    return random_split(users=8, items=30).data


def stop_after(number):
    def stop(line, rounds):
        if line["round"] == number:
            raise KeyboardInterrupt

    return stop


@pytest.fixture
def unfinished(tmp_path, data):
    """Two rounds of three, the second of which is not the best."""
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fr.train(fr.LocalOnly(dim=4, item_lr_factor=1.0), data, rounds=3, out=path, on_round=stop_after(2))
    return path


def refusal(call, *args):
    with pytest.raises(fr.UserError) as error:
        call(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


DAMAGE = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "halved": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 9),
    "other": lambda path: path.write_text("[1, 2]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_of_a_checkpoint_is_needed_whole(unfinished, data, damage):
    files = [*sorted((unfinished / "model").iterdir()), unfinished / "rounds.jsonl"]
    assert len(files) >= 3
    for file in files:
        before = file.read_bytes()
        DAMAGE[damage](file)
        says = refusal(fr.resume, unfinished, data)
        assert says.startswith(f"{file}: ")
        assert "start a new one" in says or "cannot be read" in says
        file.write_bytes(before)
    fr.resume(unfinished, data)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_finished_run_needs_them_too(tmp_path, data, damage):
    path = tmp_path / "run"
    fr.train("ials", data, rounds=2, out=path)
    for name in ("result.json", "rounds.jsonl", "model/model.json", "model/state-2.safetensors"):
        before = (path / name).read_bytes()
        DAMAGE[damage](path / name)
        assert str(path) in refusal(fr.Run.load, path, data)
        (path / name).write_bytes(before)
    assert fr.Run.load(path, data).history


def test_results_without_the_keys_of_the_contract_are_damaged(tmp_path, data):
    fr.train("popularity", data, out=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    del result["test"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    assert "result.json: is damaged" in refusal(RunFolder(tmp_path / "run").result)


def test_what_is_no_run(tmp_path):
    assert "is not a run folder" in refusal(fr.resume, tmp_path)
    assert "is not a run folder" in refusal(fr.resume, tmp_path / "nowhere")
    assert "is not a run folder" in refusal(fr.Run.load, tmp_path)
    (tmp_path / "file").write_text("x")
    assert "is not a run folder" in refusal(fr.resume, tmp_path / "file")


def test_an_unfinished_run_says_how_to_go_on(unfinished, data):
    assert f"continue it with: federec train --resume {unfinished}" in refusal(fr.Run.load, unfinished, data)


def test_a_folder_in_use_is_refused(tmp_path, unfinished, data):
    config = RunConfig.checked()
    assert "unfinished run (continue it with" in refusal(RunFolder(unfinished).create, config)
    fr.resume(unfinished, data)
    assert "finished run already" in refusal(RunFolder(unfinished).create, config)
    (tmp_path / "file").write_text("x")
    assert "is not a run folder" in refusal(RunFolder(tmp_path / "file").create, config)
    assert "is not a run folder" in refusal(RunFolder(tmp_path).create, config)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml.77.part").write_text("scraps of a run that never began")
    RunFolder(tmp_path / "empty").create(config)
    assert (tmp_path / "empty" / "config.yaml").is_file()


def test_a_disk_that_is_full_at_the_start_leaves_nothing(tmp_path, monkeypatch, data):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "free some space" in refusal(lambda: fr.train("popularity", data, out=tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_on_the_way_loses_one_round(tmp_path, monkeypatch, data):
    from federec.runs import folder

    path, write = tmp_path / "run", folder.write_atomic

    def full(file, content):
        if file.name == "state-3.safetensors":
            raise fr.UserError(f"{file}: cannot be written (No space left on device); free some space and try again")
        write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_atomic", full)
        refusal(lambda: fr.train("ials", data, rounds=4, out=path))
    played = []
    fr.resume(path, data, on_round=lambda line, rounds: played.append(line["round"]))
    assert played == [3, 4]


def test_each_state_is_stored_once(tmp_path, data):
    run = fr.train("ials", data, rounds=3, out=tmp_path / "run")
    names = {file.name for file in (tmp_path / "run" / "model").iterdir()}
    states = {"state-3.safetensors", f"state-{run.result['best_round']}.safetensors"}
    assert names == {"model.json", "examples.json", "ranks.safetensors", *states}


def test_the_best_state_of_a_loaded_checkpoint_does_not_move_with_the_newest(tmp_path, data):
    fr.train(fr.FedMF(dim=4), data, rounds=1, out=tmp_path / "run")
    point = RunFolder(tmp_path / "run").checkpoint()
    assert point.best.after == point.round == 1
    for value in (*point.state.shared.values(), *point.state.private.values()):
        value.fill_(7.0)
    assert not any((value == 7.0).any() for value in point.best_state.tensors().values())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(unfinished, data):
    (unfinished / "rounds.jsonl").chmod(0)
    assert "rounds.jsonl: cannot be read (Permission denied)" in refusal(fr.resume, unfinished, data)
