import subprocess
import sys

import pytest

import federec


def test_importing_does_not_wait_for_torch():
    code = "import sys, federec, federec.cli.main; sys.exit('torch' in sys.modules or 'polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", federec.__all__)
def test_every_name_is_there(name):
    assert getattr(federec, name).__name__ == name
    assert name in dir(federec)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = federec.nothing
