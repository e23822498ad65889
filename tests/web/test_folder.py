import json
import re
import shutil

import pytest
import torch
from safetensors.numpy import load
from tests.web.node import STATIC

import federec as fr
from federec.errors import UserError
from federec.export.precision import restored
from federec.web import folder as folders
from federec.web.folder import page_files, write_web
from federec.web.model import nearest, page_model
from federec.web.plans import form_of

WORDS = re.compile(rb"https?://(?!www\.w3\.org/)")


def test_a_folder_holds_the_page_and_nothing_from_elsewhere(trained, tmp_path):
    run, path = trained("pfedrec")
    folder = write_web(path, tmp_path / "page")
    written = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert written == page_files(path)
    assert {"index.html", "app.js", "worker.js", "sw.js", "model.safetensors", "catalogue.json"} <= written.keys()
    assert [name for name, content in written.items() if WORDS.search(content)] == []
    page = json.loads(written["page.json"])
    assert (page["items"], page["rounds"], page["method"]) == (60, run.point.best.round, "pfedrec")
    assert json.loads(written["catalogue.json"])["titles"]["3"] == "Film 3: Élan <b>& co</b>"


def test_the_service_worker_knows_every_file_and_every_module_finds_its_own(trained):
    files = page_files(trained("pfedrec")[1])
    listed = json.loads(re.search(r"const \{ version, files \} = (.*);", files["sw.js"].decode())[1])
    assert {*listed["files"]} == {"./", *files} - {"sw.js"}
    for name, content in files.items():
        for used in re.findall(r'from "([^"]+)"', content.decode()) if name.endswith(".js") else ():
            assert (STATIC / name).parent.joinpath(used).resolve().relative_to(STATIC).as_posix() in files


def test_a_changed_page_is_another_version(trained, monkeypatch, tmp_path):
    _, path = trained("pfedrec")
    before = page_files(path)
    assert page_files(path) == before
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "static" / "style.css").write_text("body {}")
    monkeypatch.setattr(folders, "STATIC", tmp_path / "static")
    assert page_files(path)["sw.js"] != before["sw.js"]


def test_a_table_of_8_bits_is_a_quarter_of_the_size(trained):
    _, path = trained("fedmf")
    small, large = (len(page_files(path, precision)["model.safetensors"]) for precision in ("int8", "float32"))
    assert small < 0.5 * large  # with scales and the header, which a larger table does not notice


def test_the_largest_weights_are_kept():
    weights = torch.tensor([[0.0, 3.0, -5.0, 1.0], [2.0, 0.0, 1.0, -9.0]])
    ids, values = nearest(weights, 2)
    assert ids.tolist() == [[1, 2], [0, 3]] and values.tolist() == [[3, -5], [2, -9]]
    assert nearest(weights, 9)[1].tolist() == weights.tolist()


def test_a_folder_that_holds_something_else_is_left_alone(trained, tmp_path):
    _, path = trained("pfedrec")
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="exists and holds no page; choose another folder"):
        write_web(path, tmp_path)
    with pytest.raises(UserError, match="exists and holds no page"):
        write_web(path, tmp_path / "letter.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]
    for _ in range(2):  # its own page is replaced
        write_web(path, tmp_path / "page")


def test_a_federations_run_needs_no_data(trained, tmp_path):
    run, path = trained("pfedrec")
    copy = shutil.copytree(path, tmp_path / "run")
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(re.sub(r"(?m)^data: .*", "data: gone.csv", config))
    with pytest.raises(UserError, match=r"gone\.csv"):
        page_files(copy)
    (copy / "federation.json").write_text("{}")
    (copy / "catalogue.json").write_text(page_files(path)["catalogue.json"].decode())
    page = json.loads(page_files(copy)["page.json"])
    assert page["items"] == run.data.n_items and page["channel"] == []  # a federation means what it says


@pytest.mark.parametrize("name", ["popularity", "fedncf"])
def test_a_method_that_the_page_cannot_play_is_refused(trained, name):
    with pytest.raises(UserError, match=f"cannot play '{name}'; train one of pfedrec, fedmf"):
        page_files(trained(name)[1])


@pytest.mark.parametrize("plugin", [fr.PLGC, fr.SAM, fr.Recency])
def test_a_plugin_that_the_page_cannot_play_is_refused(plugin):
    with pytest.raises(UserError, match="without plgc, sam and recency"):
        form_of(fr.PFedRec() | plugin(), 30)


def test_what_is_no_run_is_refused(trained, tmp_path):
    _, path = trained("pfedrec")
    with pytest.raises(UserError, match="is not a run folder"):
        page_files(tmp_path)
    with pytest.raises(UserError, match="use --precision int8"):
        page_files(path, "float16")
    copy = shutil.copytree(path, tmp_path / "run")
    next(copy.glob("model/state-*")).write_bytes(b"nothing")
    with pytest.raises(UserError, match="damaged"):
        page_files(copy)


def test_a_model_that_diverged_is_refused():
    rows = torch.full((30, 2), torch.nan)
    with pytest.raises(UserError, match="not finite; train again with smaller steps"):
        page_model(fr.FedMF(dim=2), {"items": rows}, rounds=3, seed=0, precision="int8")


def test_tables_are_read_back(trained):
    run, path = trained("pfedrec")
    stored = load(page_files(path)["model.safetensors"])
    table = restored({"values": stored["items.values"], "scales": stored["items.scales"]})
    expected = run.point.best_state.shared["items"].numpy()
    assert abs(table - expected).max() <= abs(expected).max() / 127
