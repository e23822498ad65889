"""The page's modules in node, called from Python."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import federec

STATIC = Path(federec.__file__).parent / "web" / "static"

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

HELPERS = """
import { readFileSync } from "node:fs";
const floats = (values) => Float32Array.from(values);
const integers = (values) => Int32Array.from(values);
function plain(value) {
  if (typeof value === "bigint") return value.toString();
  if (ArrayBuffer.isView(value)) return Array.from(value);
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, plain(inner)]));
}
const given = JSON.parse(readFileSync(0, "utf-8"));
"""


def node(modules, body, **given):
    """What `body`, a function body in JavaScript, returns. It sees the modules by their names, and the values given."""
    imports = "".join(f"import * as {name} from {json.dumps((STATIC / f'{name}.js').as_uri())};" for name in modules)
    call = f"process.stdout.write(JSON.stringify(plain(await (async () => {{ {body} }})())));"
    script = f"{imports}{HELPERS}const {{ {', '.join(given)} }} = given;{call}"
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, input=json.dumps(given, default=_plain), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _plain(value):
    """Arrays and tensors as flat lists."""
    assert isinstance(value, np.ndarray | torch.Tensor)
    return value.reshape(-1).tolist()
