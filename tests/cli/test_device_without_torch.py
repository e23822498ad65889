"""A device's commands, and a round that it learns, in processes where torch, numba, polars and SciPy do not exist."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="pip install federec[device]")

pytestmark = pytest.mark.thorough

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numba", "polars", "scipy"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
"""
COMMAND = f"{ABSENT}\nfrom federec.cli.main import run\nrun()"
ROUND = """
import json
from contextlib import closing
from pathlib import Path
import numpy as np
from federec.light.start import Generator
from federec.network.device import answer
from federec.network.device_folder import DeviceFolder
from federec.network.hiding import Sums
from federec.network.keys import Key
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.network.policy import Policy
from federec.runs.config import RunConfig

method, stage = sys.argv[1:]
key = Key.file(Path("key"))
with closing(DeviceFolder.open(Path("device"), key)) as store:
    items = len(store.catalogue)
    store.pin(Policy.checked(method=method, clear=True))
config = RunConfig.checked(method=method, channel=[{"stage": stage}] if stage else [])
tables = {name: Generator(1).values(param, items) for name, param in config.build().shared().items()}
shared = Payload(np.arange(items), tables)
order = Order("train", "run", 1, config.model_dump(mode="json"), [items], shared=shared)
reply = Reply.parse(answer(lambda: closing(DeviceFolder.open(Path("device"), key)), order.pack(), Sums()))
print(json.dumps([reply.failed, len(reply.update.ids)]))
assert not {"torch", "numba", "polars", "scipy"} & sys.modules.keys()
"""


@pytest.fixture
def run(tmp_path):
    """Run a program in a folder that has a catalogue; what it prints."""
    catalogue = {"items": [f"m{code}" for code in range(120)], "titles": {"m7": "Heat (1995)"}}
    (tmp_path / "catalogue.json").write_text(json.dumps(catalogue))

    def start(program, *arguments, code=0):
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "FEDEREC_KEYS": str(tmp_path / "keys")}
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=tmp_path, env=env
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return start


@pytest.mark.parametrize("method", ["pfedrec", "fedrap"])
def test_a_device_records_learns_recommends_and_forgets(run, method):
    run(COMMAND, "device", "init", "--catalogue", "catalogue.json", "--key", "key")
    for item in ("m7", "m9", "m30", "m31"):
        assert f"recorded '{item}'" in run(COMMAND, "device", "add", item, "--key", "key")
    assert "nothing was learned here yet" in run(COMMAND, "device", "recommend", "--key", "key", code=2)
    assert json.loads(run(ABSENT + ROUND, method, "dense")) == ["", 120]
    found = json.loads(run(COMMAND, "device", "recommend", "-k", "3", "--json", "--key", "key"))
    assert len(found) == 3 and not {"m7", "m9", "m30", "m31"} & {item["item"] for item in found}
    assert method in run(COMMAND, "device", "status", "--key", "key")
    assert "is clipped to norm 1" in run(COMMAND, "device", "policy", "--stage", "clip:norm=1", "--key", "key")
    assert "BEGIN CERTIFICATE REQUEST" in run(COMMAND, "device", "request", "--key", "key")
    assert "interactions left: 3" in run(COMMAND, "device", "forget", "m7", "--key", "key")
    assert "erased" in run(COMMAND, "device", "forget", "--everything", "--yes")


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("train", "--data", "tastes", "--rounds", "1"), "torch", "train"),
        (("device", "init", "--data", "ratings.csv"), "polars", "train"),
        (("methods",), "torch", "train"),
    ],
)
def test_what_needs_more_says_what_to_install(run, tmp_path, arguments, package, extra):
    Path(tmp_path / "ratings.csv").write_text("user,item\n1,2\n1,3\n2,2\n")
    told = run(COMMAND, *arguments, code=2).strip()
    assert told.endswith(f"this needs the package {package}; install it with: pip install 'federec[{extra}]'"), told


def test_a_round_that_needs_torch_is_refused_and_the_log_says_what_to_install(run):
    run(COMMAND, "device", "init", "--catalogue", "catalogue.json", "--key", "key")
    run(COMMAND, "device", "add", "m7", "--key", "key")
    told = run(ABSENT + ROUND, "pfedrec", "quantise")
    assert "stage 'quantise' needs the package torch; install it with: pip install 'federec[train]'" in told


def test_python_says_what_to_install(run):
    program = f"{ABSENT}\nimport federec as fr\ntry:\n    fr.train\nexcept fr.UserError as error:\n    print(error)"
    assert "this needs the package torch; install it with: pip install 'federec[train]'" in run(program)
