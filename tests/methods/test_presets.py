import pytest
import yaml

from federec.errors import UserError
from federec.methods import presets as module
from federec.methods.presets import RUN_SETTINGS, preset, presets
from federec.plugins.registry import build


@pytest.mark.parametrize("name", ["presets.yaml", "tuned.yaml"])
def test_every_shipped_preset_is_settings_that_its_method_takes(name):
    owners = yaml.safe_load((module.files("federec.methods") / name).read_text(encoding="utf-8"))
    assert owners
    for owner, named in owners.items():
        method, *plugins = owner.split("+")
        for settings in named.values():
            assert build(method, plugins, {key: settings[key] for key in settings if key not in RUN_SETTINGS})


def test_clean_is_what_was_tuned_on_the_data_set():
    found = preset("fedmf", "clean", data="ml-100k")
    assert found == presets("fedmf")["ml-100k-clean"] and found != presets("fedmf")["filmtrust-clean"]
    with pytest.raises(UserError, match=r"'fedmf' was not tuned on 'mine\.csv'; take one of: ml-100k-clean, "):
        preset("fedmf", "clean", data="mine.csv")


def test_what_was_tuned_without_a_plug_in_is_not_taken_with_it():
    assert "ml-100k-clean" in presets("pfedrec") and "ml-100k-clean" not in presets("pfedrec", ["ldp"])


def test_a_preset_of_a_method_with_a_plug_in_goes_over_the_methods_own():
    assert "ml-1m" not in presets("fedncf")
    assert preset("fedncf", "ml-1m", ["dualper"]) == presets("fedncf", ["dualper"])["ml-1m"] == {"lr": 0.25}


def test_an_unknown_preset_is_refused():
    with pytest.raises(UserError, match="'local-only' has no preset 'ml-1m'; it has none"):
        preset("local-only", "ml-1m")
    with pytest.raises(UserError, match="'fedmf' has no preset 'ml-1k' "):
        preset("fedmf", "ml-1k")
