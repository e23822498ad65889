import json
import stat

import numpy as np
import pytest
from safetensors.numpy import load_file

from federec.errors import UserError
from federec.export.precision import restored
from federec.export.write import export
from federec.network.catalogue import Catalogue

FIGURES = ("hr@10", "ndcg@10")


def onnx_scores(path, **inputs):
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    known = {each.name for each in session.get_inputs()}
    return session.run(None, {name: value for name, value in inputs.items() if name in known})[0]


def test_safetensors_hold_the_shared_parameters(exported_run, tmp_path):
    folder, run = exported_run("pfedrec")
    found = export(folder, tmp_path / "out", "safetensors", "int8")
    arrays, table = load_file(found.model), run.point.best_state.shared["items"].numpy()
    small = restored({"values": arrays["items"], "scales": arrays["items.scales"]})
    assert set(arrays) == {"items", "items.scales"} and arrays["items"].dtype == np.int8
    assert np.abs(small - table).max() <= np.abs(table).max() / 127 * 0.51
    assert Catalogue.read(tmp_path / "out" / "catalogue.json").labels == tuple(map(str, run.data.item_ids))
    assert not [path for path in (tmp_path / "out").iterdir() if "private" in path.name]


def test_export_json_says_what_the_precision_costs(exported_run, tmp_path):
    folder, run = exported_run("fedmf")
    found = export(folder, tmp_path / "out", "safetensors", "int8")
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert about["test"] == {kind: {name: run.test[kind][name] for name in FIGURES} for kind in ("sampled", "full")}
    assert about["test_as_stored"] == found.after and not about["holds_private_data"]
    assert about["model"]["bytes"] == found.bytes < about["model"]["float32_bytes"]


def test_a_table_that_says_nothing_costs_what_it_was_worth(exported_run, tmp_path, monkeypatch):
    """The loss is measured with the table as it is stored: with a useless one it is large."""
    folder, _ = exported_run("fedease")
    honest = export(folder, tmp_path / "a", "safetensors", "int8")
    monkeypatch.setattr("federec.export.model.restored", lambda arrays: np.zeros(arrays["values"].shape, np.float32))
    useless = export(folder, tmp_path / "b", "safetensors", "int8")
    assert useless.after["full"]["hr@10"] == 0 < honest.after["full"]["hr@10"]


@pytest.mark.parametrize("name", ["pfedrec", "fedrap", "fedncf", "fedease"])
def test_a_users_own_graph_scores_as_the_users_device(exported_run, tmp_path, name):
    """PFedRec ranks with rows that it tunes in the round, FedRAP with private rows, FedEASE with its history."""
    folder, run = exported_run(name)
    found = export(folder, tmp_path / "out", "onnx", user="u3")
    items = np.arange(run.data.n_items)
    devices = run.trainer.devices
    history = devices.train[devices.ptr[3] : devices.ptr[4]].long().numpy()
    scores = onnx_scores(found.model, items=items, history=history)
    assert scores[0] == pytest.approx(run.score(["u3"])[0], abs=1e-4)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["holds_private_data"]


@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
def test_what_is_private_only_the_owner_can_read(exported_run, tmp_path, kind):
    folder, _ = exported_run("pfedrec")
    export(folder, tmp_path / "out", kind, user="u3")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {0o600} and len(modes) == (3 if kind == "onnx" else 4)


def test_without_a_user_nothing_private_is_written(exported_run, tmp_path):
    """No private number of anybody is in the files, and the history of nobody."""
    folder, run = exported_run("fedrap")
    for kind in ("onnx", "safetensors"):
        export(folder, tmp_path / kind, kind)
        content = b"".join(path.read_bytes() for path in (tmp_path / kind).iterdir())
        state = run.point.best_state
        assert state.shared["common"].numpy()[0].tobytes() in content
        for user in range(run.data.n_users):
            assert state.private["score.0.weight"][user].numpy().tobytes() not in content


def test_a_folder_that_is_there_is_refused(exported_run, tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match="exists already"):
        export(exported_run("pfedrec")[0], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_user_that_is_not_there_is_one_line(exported_run, tmp_path):
    with pytest.raises(UserError, match="did you mean 'u1"):
        export(exported_run("pfedrec")[0], tmp_path / "out", "safetensors", user="u111")
    assert not (tmp_path / "out").exists()
