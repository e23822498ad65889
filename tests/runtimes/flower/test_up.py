import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

NODE = """
from pathlib import Path

import torch

from federec.runtimes.flower import node, up

torch.set_num_threads(4)
up._follow_parent = lambda: None
node.join = lambda *given: print(torch.get_num_threads(), flush=True)
up._node(Path("log"), ())
"""


@pytest.mark.parametrize(("asked", "threads"), [({}, "1\n"), ({"OMP_NUM_THREADS": "3"}, "4\n")], ids=["default", "set"])
def test_nodes_of_one_machine_have_one_thread_each_unless_it_is_set(tmp_path, asked, threads):
    plain = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    subprocess.run([sys.executable, "-c", NODE], cwd=tmp_path, env=plain | asked, check=True)
    assert Path(tmp_path, "log").read_text() == threads
