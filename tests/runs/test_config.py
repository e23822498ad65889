import hashlib
import sys
from typing import Any

import pytest
import yaml

from federec.data.interactions import Interactions
from federec.errors import UserError
from federec.methods.fedmf import FedMF
from federec.methods.fedsasrec import FedSASRec
from federec.methods.pfedrec import PFedRec
from federec.methods.registry import METHODS, method_class
from federec.plugins.registry import plugin_class, with_plugins
from federec.runs.config import RunConfig


@pytest.mark.parametrize("name", METHODS)
def test_text_and_read_bring_the_same_configuration(tmp_path, name):
    config = RunConfig.checked(method=name, seed=7, data="日本 [b].csv", columns={"user": "кто", "item": "2"})
    (tmp_path / "config.yaml").write_text(config.text(), encoding="utf-8")
    assert RunConfig.read(tmp_path / "config.yaml") == config
    assert config.settings == METHODS[name]().model_dump(mode="json")
    assert config.rounds >= 1


def test_a_method_at_work_on_loaded_data(random_split):
    data = random_split().data
    config = RunConfig.of(PFedRec(dim=4), data, seed=3)
    assert (config.method, config.settings["dim"], config.data, config.seed) == ("pfedrec", 4, "<small>", 3)
    origin = {"data": "/somewhere/x.csv", "columns": {"user": "a"}, "min_interactions": 5, "k_core": None}
    data = Interactions("x.csv", data.users, data.items, data.user_ids, data.item_ids, origin=origin)
    assert RunConfig.of(PFedRec(), data).model_dump().items() >= origin.items()


def test_repeats_are_read_as_the_named_set_says():
    assert [RunConfig.checked(data=name).repeats for name in ("tastes", "mine.csv", "lastfm-2k", "lastfm-2k-tags")] == [
        *("merge", "merge", "merge", "keep"),
    ]
    assert RunConfig.checked(data="lastfm-2k-tags", repeats="merge").repeats == "merge"


def test_no_more_rounds_than_a_method_has():
    assert RunConfig.checked(method="popularity", rounds=50).rounds == 1
    assert RunConfig.checked(method="ease", settings={"l2": [1, 2]}).rounds == 2
    assert RunConfig.checked(method="ease", rounds=1).rounds == 1


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"methd": "x"}, "no setting 'methd' - did you mean 'method'?"),
        ({"method": "pfedrek"}, "unknown method 'pfedrek' - did you mean 'pfedrec'?"),
        ({"plugins": ["dualpr"]}, "unknown plug-in 'dualpr' - did you mean 'dualper'?"),
        ({"method": "ials", "plugins": ["dualper"]}, "does not fit 'ials'"),
        ({"protocol": "claen"}, "unknown protocol 'claen' - did you mean 'clean'?"),
        ({"device": "cudda"}, "unknown device 'cudda' - did you mean 'cuda'?"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"settings": {"dmi": 3}}, "no setting 'dmi' - did you mean 'dim'?"),
        ({"settings": {"dim": 0}}, "dim=0"),
        ({"settings": {"lr": "abc"}}, "lr='abc'"),
        ({"settings": {"lr": float("nan")}}, "lr=nan"),
        ({"rounds": 0}, "rounds=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed="),
        ({"participation": 0}, "participation=0"),
        ({"participation": 2}, "participation=2"),
        ({"participation": float("nan")}, "participation=nan"),
        ({"min_interactions": -1}, "min_interactions=-1"),
        ({"settings": [1]}, "settings=[1]"),
    ],
)
def test_faults_are_named(values, says):
    with pytest.raises(UserError) as error:
        RunConfig.checked(**values)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no settings"),
        ("- 1", "holds no settings"),
        ("method: [", "line 1, column 10: is not valid YAML"),
        ("rounds: 2021-99-99", "is not valid YAML"),
        ("rounds: many", "rounds='many'"),
        ("1: 2", "no setting '1'"),
        (b"\xff\xfe\xfa", "is not valid YAML"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, says):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as error:
        RunConfig.read(path)
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.yaml: cannot be read \(No such file"):
        RunConfig.read(tmp_path / "nowhere.yaml")


def test_the_text_is_plain_yaml():
    assert yaml.safe_load(RunConfig.checked(plugins=["dualper"], method="fedmf").text())["plugins"] == ["dualper"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file with a method and a plug-in."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / f"{tmp_path.name}.py".replace("-", "_")
    path.write_text("import federec as fr\nclass Mine(fr.FedMF):\n    pass\nclass Twist(fr.Plugin):\n    pass\n")
    return path


def test_references_are_kept_with_the_content_of_their_files(mine, monkeypatch, tmp_path):
    monkeypatch.chdir(mine.parent)
    config = RunConfig.checked(method=f"{mine.name}:Mine", plugins=("dualper", f"{mine.name}:Twist"))
    sha256 = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert config.method == f"{mine}:Mine" and config.plugins == ("dualper", f"{mine}:Twist")
    assert config.sources == {f"{mine}:Mine": sha256, f"{mine}:Twist": sha256}
    method = config.build()
    assert (method.name, method.plugins) == ("mine", ("dualper", "twist"))
    path = tmp_path / "config.yaml"
    path.write_text(config.text())
    assert RunConfig.read(path) == config and config.changed(method) == []
    mine.write_text(mine.read_text() + "# changed\n")
    read = RunConfig.read(path)
    assert read == config  # what it was configured with, not what the file is now
    assert read.changed(read.build()) == [mine, mine]


@pytest.mark.parametrize("rounds", [None, 7])
def test_settings_that_follow_the_rounds_are_filled_in_when_the_method_is_built(tmp_path, random_split, rounds):
    """The file keeps what was asked for, so that the same file with other rounds gets their schedule."""
    method, length = FedSASRec(dim=8), rounds or FedSASRec.default_rounds
    config = RunConfig.of(method, random_split().data, rounds=rounds)
    assert config.settings["schedule"] == 0
    assert config.build() == config.build(method) == FedSASRec(dim=8, schedule=length)
    path = tmp_path / "config.yaml"
    path.write_text(config.text())
    for given in (method, config.build(method)):
        assert RunConfig.read(path, given) == config
    with pytest.raises(UserError, match="other settings"):
        RunConfig.read(path, FedSASRec(dim=8, schedule=length + 1))
    assert RunConfig.checked(**dict(config) | {"rounds": 20}).build() == FedSASRec(dim=8, schedule=20)


def test_the_object_itself_is_configured(mine, random_split):
    class_, twist = method_class(f"{mine}:Mine"), plugin_class(f"{mine}:Twist")
    method = with_plugins(class_(dim=5), [twist, "dualper"])
    config = RunConfig.of(method, random_split().data)
    assert (config.method, config.plugins) == (f"{mine}:Mine", (f"{mine}:Twist", "dualper"))
    assert config.settings["dim"] == 5 and config.build() is not method


def test_an_old_configuration_has_no_sources(tmp_path):
    path = tmp_path / "config.yaml"
    values = yaml.safe_load(RunConfig.checked(method="fedmf").text())
    del values["sources"]
    path.write_text(yaml.safe_dump(values))
    assert RunConfig.read(path).sources == {}


def test_another_method_than_the_run_s_is_refused():
    values = RunConfig.checked(method="fedmf", settings={"dim": 4}).model_dump(mode="json")
    assert RunConfig.checked(FedMF(dim=4), **values).settings["dim"] == 4
    with pytest.raises(UserError, match="the run is of fedmf, not of the given pfedrec"):
        RunConfig.checked(PFedRec(dim=4), **values)
    with pytest.raises(UserError, match="the given 'fedmf' has other settings than the run"):
        RunConfig.checked(FedMF(dim=5), **values)


def test_settings_that_no_file_can_hold_are_refused(random_split):
    class Odd(FedMF):
        thing: Any = object()

    with pytest.raises(UserError, match="the settings of 'odd' cannot be written to a file") as caught:
        RunConfig.of(Odd(), random_split().data)
    assert "\n" not in str(caught.value)


def test_a_server_s_configuration_names_only_what_the_device_trusts(mine, monkeypatch):
    sha256 = hashlib.sha256(mine.read_bytes()).hexdigest()
    theirs = {"method": "/server/m.py:Mine", "plugins": ["/server/m.py:Twist", "dualper"], "rounds": 3}
    theirs["sources"] = {"/server/m.py:Mine": sha256, "/server/m.py:Twist": sha256}
    with pytest.raises(UserError, match="this device does not run the method 'Mine'"):
        RunConfig.from_server(**theirs)
    monkeypatch.setenv("FEDEREC_METHODS", f"{mine}:Mine,{mine}:Twist")
    config = RunConfig.from_server(**theirs)
    assert (config.method, config.plugins) == (f"{mine}:Mine", (f"{mine}:Twist", "dualper"))
    assert config.sources == {f"{mine}:Mine": sha256, f"{mine}:Twist": sha256} and config.rounds == 3
    assert config.build().plugins == ("twist", "dualper")
    assert RunConfig.from_server(method="fedmf").method == "fedmf"
    with pytest.raises(UserError, match="this device does not run the plug-in 'Twist'"):
        RunConfig.from_server(**theirs | {"sources": {"/server/m.py:Mine": sha256}})
