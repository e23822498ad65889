import pytest
import yaml

from federec.data.interactions import Interactions
from federec.errors import UserError
from federec.methods.pfedrec import PFedRec
from federec.methods.registry import METHODS
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
    assert (config.method, config.settings["dim"], config.data, config.seed) == ("pfedrec", 4, data.name, 3)
    origin = {"data": "/somewhere/x.csv", "columns": {"user": "a"}, "min_interactions": 5, "k_core": None}
    data = Interactions("x.csv", data.users, data.items, data.user_ids, data.item_ids, origin=origin)
    assert RunConfig.of(PFedRec(), data).model_dump().items() >= origin.items()


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
