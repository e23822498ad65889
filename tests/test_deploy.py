"""What `deploy/` holds is whole: units and containers name commands and options that exist, each sees only its own
secrets, and what is installed is fixed by hashes."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

pytest.importorskip("flwr", reason="pip install federec[flower]")

from federec.cli.main import app

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
UNITS = sorted(DEPLOY.glob("systemd/*.service"))


def options(*path):
    """All options of one of our commands."""
    found = get_command(app)
    for name in path:
        found = found.commands[name]
    return {option for parameter in found.params for option in parameter.opts}


def commands():
    """(file, command line) of every process that is started, and of every command in a comment."""
    for unit in UNITS:
        text = unit.read_text().replace("\\\n", " ")
        yield unit.name, re.search(r"^ExecStart=/opt/federec/bin/(.*)$", text, re.M)[1]
    for name, service in SERVICES.items():
        yield name, service["command"]
    for line in (DEPLOY / "compose.yaml").read_text().splitlines():
        if line.startswith("#   federec"):
            yield "compose.yaml", line.removeprefix("#   ")


@pytest.mark.parametrize(("place", "line"), list(commands()))
def test_commands_have_the_options_that_are_given(place, line):
    program, *words = line.split()
    assert program == "federec"
    assert {word for word in words if word.startswith("--")} <= options(*words[:2]), place


def test_a_container_sees_only_its_own_folder():
    folders = [service["volumes"] for service in SERVICES.values()]
    assert folders == [[f"./{name}:/home/federec/own"] for name in SERVICES]
    assert all(service["read_only"] and service["cap_drop"] == ["ALL"] for service in SERVICES.values())
    published = [service.get("ports", []) for service in SERVICES.values()]
    assert published == [["8000:8000"], [], []]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_private(unit):
    lines = set(unit.read_text().splitlines())
    assert {"UMask=0077", "StateDirectoryMode=0700", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= lines
    assert any(line.startswith("User=federec") for line in lines)


def test_what_is_installed_is_fixed_by_hashes():
    text = (DEPLOY / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9._-]+)==(\S+) \\$", text, re.M))
    entries = re.findall(r"^[a-z0-9._-]+==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.M)
    assert "".join(entries) == text
    assert "://" not in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in ("device", "train", "flower"):
        wanted += [name for name in extras[extra] if not name.startswith("federec[")]
    assert {re.match(r"[a-z0-9-]+", name)[0] for name in wanted} <= pinned.keys()
    assert pinned["torch"].endswith("+cpu")
    assert "--require-hashes" in (DEPLOY / "Dockerfile").read_text()
