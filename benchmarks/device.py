"""What taking part costs a device: seconds and memory of processes that do what a device does.

    python benchmarks/device.py [--data ml-1m] [--methods pfedrec fedmf fedrap] [--hub 100] [--python PATH] [--page]

Three devices: of the median user, of the busiest one, and a hub. Seconds are those of the CPU, on one thread: `ready`
from the start of a process until it could answer an order; `round` the dearest of three, from opening the folder to the
message that leaves; `recommend` the whole command `federec device recommend`, the quickest of three. Memory is the
largest resident size of the process that learns, and what of it is its own (PSS) at the end.

`--python` names the interpreter of the device, such as one of an environment without torch:

    python -m venv /tmp/device && /tmp/device/bin/pip install '.[device]'
    python benchmarks/device.py --python /tmp/device/bin/python
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROUNDS = 3


def play(folder: Path, key: Path, method: str) -> None:
    """In a process of its own: play rounds with the whole table of items, as a server would send it."""
    import numpy as np

    from federec.network.device import answer
    from federec.network.device_folder import DeviceFolder
    from federec.network.engines import has_torch
    from federec.network.hiding import Sums
    from federec.network.keys import Key
    from federec.network.messages import Order, Reply
    from federec.network.parameters import Payload
    from federec.runs.config import RunConfig

    if has_torch():
        import torch

        import federec.network.torch_engine

        torch.set_num_threads(1)
    else:
        import federec.network.light_engine  # noqa: F401
    with closing(DeviceFolder.open(folder, Key.file(key))) as store:
        n_items = len(store.catalogue)
    ready = time.process_time()
    config = RunConfig.checked(method=method, channel=[{"stage": "dense"}])
    params = config.build().shared()
    shapes = {name: (n_items,) * param.rows + param.sized(n_items) for name, param in params.items()}
    # Any numbers will do. They are not drawn: `numpy.random` takes 2 MB, and a device does not load it.
    values = {
        name: np.sin(np.arange(math.prod(shape), dtype=np.float32)).reshape(shape) for name, shape in shapes.items()
    }
    tables = {name: value for name, value in values.items() if params[name].rows}
    layers = {name: value for name, value in values.items() if name not in tables}
    shared, settings = Payload(np.arange(n_items if tables else 0), tables, layers), config.model_dump(mode="json")
    rounds, sent = [], 0
    for number in range(1, ROUNDS + 1):
        order = Order("train", "run", number, settings, [n_items], shared=shared).pack()
        began = time.process_time()
        reply = answer(lambda: closing(DeviceFolder.open(folder, Key.file(key))), order, Sums())
        rounds.append(time.process_time() - began)
        assert not Reply.parse(reply).failed
        sent = len(reply)
    peak = int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) // 1024
    own = int(re.findall(r"^Pss:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.M)[0]) // 1024
    print(json.dumps({"ready": ready, "round": max(rounds), "peak": peak, "own": own, "sent": sent}))


def measured(python: str, folder: str, method: str, user: str) -> dict[str, Any]:
    """What a device costs that learns rounds and then recommends."""
    environment = os.environ | {"PLAY": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run([python, __file__, folder, method], check=True, capture_output=True, env=environment)
    said = json.loads(child.stdout)
    words = ["-m", "federec", "device", "recommend", "--user", user, "--folder", f"{folder}/device", "--key"]
    seconds = []
    for _ in range(3):
        began = os.times()
        subprocess.run([python, *words, f"{folder}/key"], check=True, capture_output=True, env=environment)
        ended = os.times()
        seconds.append(ended.children_user + ended.children_system - began.children_user - began.children_system)
    return {**said, "recommend": min(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--methods", nargs="+", default=["pfedrec", "fedmf", "fedrap"])
    parser.add_argument("--hub", type=int, default=100, help="users of the hub")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the device")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()

    import numpy as np
    from page import bars, put, table

    from federec.data.sets import load
    from federec.network.device_folder import DeviceFolder
    from federec.network.keys import Key
    from federec.network.policy import Policy

    data = load(asked.data)
    counts = np.bincount(data.users)
    order = np.argsort(counts)
    devices = {"median user": [order[len(order) // 2]], "busiest user": [order[-1]], "hub": range(asked.hub)}
    rows, drawn = [], {}
    for method in asked.methods:
        for name, codes in devices.items():
            with TemporaryDirectory() as folder:
                key = Key.new_file(Path(folder) / "key")
                store = DeviceFolder.share(Path(folder) / "device", key, data, [int(code) for code in codes])
                store.pin(Policy.checked(method=method, clear=True))
                user = store.users[0]
                store.close()
                said = measured(asked.python, folder, method, user)
            touched = int(counts[list(codes)].sum())
            seconds = f"{said['ready']:.2f}", f"{said['round']:.3f}", f"{said['recommend']:.2f}"
            sizes = f"{said['peak']}", f"{said['own']}", f"{said['sent'] / 1024:.0f}"
            rows.append([f"{method}, {name}", f"{touched:,}", *seconds, *sizes])
            drawn[rows[-1][0]] = {"": said["round"]}
            print(*rows[-1], flush=True)
    seconds = ["ready, s", "round, s", "recommend, s"]
    head = [f"device, {asked.data}", "interactions", *seconds, "peak MB", "own MB", "sent kB"]
    print(f"\n{table(head, rows)}")
    if asked.page:
        drawing = bars("device", "CPU seconds of a device's part of a round", drawn)
        put("device", "What taking part costs a device", f"{table(head, rows)}\n\n{drawing}")


if __name__ == "__main__":
    if os.environ.get("PLAY"):
        play(Path(sys.argv[1]) / "device", Path(sys.argv[1]) / "key", sys.argv[2])
    else:
        main()
