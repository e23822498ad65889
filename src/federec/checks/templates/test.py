"""The properties that every method and plug-in of federec has: pytest test_FILE"""

from pathlib import Path

import pytest

from federec.checks.suite import Check, suite

CHECKS = suite(f"{Path(__file__).with_name('FILE')}:NewMethod")


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_property(check: Check) -> None:
    check.run()
