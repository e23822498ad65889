"""The commands of docs/how-to/machines.md, on two machines that are network namespaces."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from benchmarks.machines import two_machines
from safetensors.torch import load_file
from tests.pages import blocks

import federec as fr

PAGE = Path(__file__).parents[2] / "docs/how-to/machines.md"
RECIPE = [block.text for block in blocks("machines", PAGE.read_text("utf-8")) if "torchrun" in block.text]
LIMIT = 240.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machines():
    try:
        with two_machines() as made:
            yield made
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


class Running:
    """The commands of the page, each machine with a disk of its own."""

    def __init__(self, machines, folder):
        self.machines, self.disks = machines, [folder / name for name in ("first", "second")]
        self.processes = {}
        (folder / "bin").mkdir()
        torchrun = f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n'
        (folder / "bin" / "torchrun").write_text(torchrun)
        (folder / "bin" / "torchrun").chmod(0o755)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
        for disk in self.disks:
            disk.mkdir()

    def start(self, number):
        with (self.disks[number] / "log").open("a") as log:
            command = self.machines[number].command("bash", "-ec", RECIPE[number])
            how = {"cwd": self.disks[number], "env": self.environment, "stdout": log, "stderr": log}
            self.processes[number] = subprocess.Popen(command, **how)

    @property
    def run(self):
        return self.disks[0] / "runs/films"

    def finish(self):
        codes = [self.processes[number].wait(timeout=LIMIT) for number in (0, 1)]
        assert codes == [0, 0], "\n".join((disk / "log").read_text() for disk in self.disks)

    def wait_for(self, rounds):
        path, end = self.run / "rounds.jsonl", time.monotonic() + LIMIT
        while not path.exists() or len(path.read_text().splitlines()) < rounds:
            assert time.monotonic() < end, "\n".join((disk / "log").read_text() for disk in self.disks)
            time.sleep(0.02)

    def kill(self, number, only_worker=False):
        """A machine loses its processes; `only_worker`: all but torchrun."""
        for process in self.machines[number].processes():
            if not only_worker or b"\0RANK=" in Path(f"/proc/{process}/environ").read_bytes():
                os.kill(process, signal.SIGKILL)

    def end(self):
        for number in (0, 1):
            self.kill(number)


@pytest.fixture
def running(machines, tmp_path):
    commands = Running(machines, tmp_path)
    yield commands
    commands.end()


@pytest.fixture(scope="module")
def undisturbed(machines, tmp_path_factory):
    commands = Running(machines, tmp_path_factory.mktemp("undisturbed"))
    try:
        for number in (0, 1):
            commands.start(number)
        commands.finish()
    finally:
        commands.end()
    return commands


def test_two_machines_end_where_one_process_does(undisturbed):
    words = re.search(r"train (.*) --out", RECIPE[0])[1].split()
    assert words == ["pfedrec", "--data", "tastes", "--rounds", "20"]
    alone, run = fr.train("pfedrec", "tastes", rounds=20), fr.Run.load(undisturbed.run)
    assert run.test["sampled"] == pytest.approx(alone.test["sampled"], abs=0.01)
    for name, value in alone.point.state.shared.items():
        torch.testing.assert_close(run.point.state.shared[name], value, rtol=1e-3, atol=1e-4)
    assert not (undisturbed.disks[1] / "runs").exists()


def test_a_run_that_lost_a_process_and_both_machines_ends_the_same(running, undisturbed):
    for number in (0, 1):
        running.start(number)
    running.wait_for(3)
    running.kill(0, only_worker=True)
    running.wait_for(6)
    running.kill(1)
    running.start(1)
    running.wait_for(9)
    running.kill(0)
    running.kill(1)
    for number in (0, 1):
        running.start(number)
    running.finish()
    for name in ("ranks", "state-20"):
        expected = load_file(undisturbed.run / f"model/{name}.safetensors")
        actual = load_file(running.run / f"model/{name}.safetensors")
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[key], value) for key, value in expected.items()), name
    assert not (running.disks[1] / "runs").exists()
