"""What `deploy/` holds is whole: scripts run, units and containers name commands and options that exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

pytest.importorskip("flwr", reason="pip install federec[flower]")

from federec.cli.main import app

DEPLOY = Path(__file__).parents[1] / "deploy"


def options(command, *path):
    """All options of one of our commands."""
    found = get_command(app)
    for name in path:
        found = found.commands[name]
    assert found.name == command
    return {option for parameter in found.params for option in parameter.opts}


def commands():
    """(file, command line) of every process that is started."""
    for unit in sorted(DEPLOY.glob("systemd/*.service")):
        text = unit.read_text().replace("\\\n", " ")
        yield unit.name, re.search(r"^ExecStart=/opt/federec/bin/(.*)$", text, re.M)[1]
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        yield name, service["command"]


@pytest.mark.parametrize(("place", "line"), list(commands()))
def test_commands_have_the_options_that_are_given(place, line):
    program, *words = line.split()
    given = {word for word in words if word.startswith("--")}
    if program == "federec":
        assert given <= options("join", "federation", "join"), place
        return
    help_ = subprocess.run(
        [Path(sys.executable).with_name(program), "--help"], capture_output=True, text=True, timeout=60
    )
    assert all(option in help_.stdout for option in given), place


def test_the_certificate_script_makes_what_a_federation_needs(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = [DEPLOY / "certificates.sh", tmp_path / "tls", "federec.example.org 10.0.0.1", "phone", "hub"]
    subprocess.run(script, check=True, timeout=60, env=os.environ | {"PATH": path}, capture_output=True)
    names = {str(file.relative_to(tmp_path / "tls")) for file in (tmp_path / "tls").rglob("*") if file.is_file()}
    keys = {f"keys/{device}{end}" for device in ("phone", "hub") for end in ("", ".pub")}
    assert names == {"ca.crt", "server.pem", "server.key"} | keys
