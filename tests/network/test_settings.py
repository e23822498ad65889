"""What a federation's settings refuse."""

import pytest

from federec.errors import UserError
from federec.network.settings import FederationSettings


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
