import pytest
import yaml

from federec.errors import UserError
from federec.methods import presets as module
from federec.methods.presets import preset, presets
from federec.plugins.registry import build


def test_every_shipped_preset_is_settings_that_its_method_takes():
    text = (module.files("federec.methods") / "presets.yaml").read_text(encoding="utf-8")
    owners = yaml.safe_load(text)
    assert owners
    for owner, named in owners.items():
        method, *plugins = owner.split("+")
        for settings in named.values():
            assert build(method, plugins, settings)


def test_a_preset_of_a_method_with_a_plug_in_goes_over_the_methods_own():
    assert "ml-1m" not in presets("fedncf")
    assert preset("fedncf", "ml-1m", ["dualper"]) == presets("fedncf", ["dualper"])["ml-1m"] == {"lr": 0.25}


def test_an_unknown_preset_is_refused():
    with pytest.raises(UserError, match="'fedmf' has no preset 'ml-1m'; it has none"):
        preset("fedmf", "ml-1m")
