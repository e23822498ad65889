import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import federec

ROOT = Path(__file__).parents[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("federec, federec.cli.main", ("torch", "polars")),
        ("federec.runtimes.local, federec.tracking.registry", ("tensorboard", "mlflow")),
    ],
)
def test_importing_does_not_wait_for_what_is_not_needed_yet(imported, absent):
    code = f"import sys, {imported}; sys.exit(bool(sys.modules.keys() & {{*{absent}}}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", federec.__all__)
def test_every_name_is_there(name):
    assert getattr(federec, name).__name__ == name
    assert name in dir(federec)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = federec.nothing


def test_the_version_has_a_single_source():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    source = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE) == [federec.__version__]


def test_the_release_is_in_the_changelog_and_the_citation():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == federec.__version__
    assert f"## {federec.__version__} - {cited['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
