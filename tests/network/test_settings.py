"""What a federation's settings refuse."""

import pytest

from federec.errors import UserError
from federec.network.catalogue import Catalogue
from federec.network.settings import FederationSettings, prepare
from federec.runs.config import RunConfig


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"deadlin": 3}, "no setting 'deadlin' - did you mean 'deadline'"),
        ({"deadline": -1}, "deadline=-1: input should be greater than 0"),
        (
            {"rows": "all"},
            "'rows' is no setting of the network; say it as a stage: --stage dense or --stage secure-sum",
        ),
        ({"sizes": [3]}, "no setting 'sizes'"),
    ],
)
def test_settings_are_refused_in_one_line(values, text):
    with pytest.raises(UserError, match=text):
        FederationSettings.checked(**values)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"split": "time"}, "time"),
        ({"held_out": {"test": "t.csv"}}, "given"),
        ({"columns": {"split": "part"}}, "given"),
    ],
)
def test_devices_only_hold_out_their_own_newest_items(tmp_path, random_split, values, rule):
    config = RunConfig.checked(method="fedmf", **values)
    with pytest.raises(
        UserError, match=f"split '{rule}': a federation's devices hold out their own two newest items; use --split"
    ):
        prepare(tmp_path / "run", config, FederationSettings(), Catalogue.of(random_split().data))
    assert not (tmp_path / "run").exists()
