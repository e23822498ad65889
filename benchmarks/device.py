"""What taking part costs a device: CPU seconds and peak memory of a process that plays rounds as a node does.

    python benchmarks/device.py [--data ml-1m] [--methods pfedrec fedmf fedncf fedrap] [--hub 100] [--page]

Three devices: of the median user, of the busiest one, and a hub. `loading` is spent once a process, on torch and
federec; `round` is the dearest of three, from opening the folder to the message that leaves.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

ROUNDS = 3


def play(folder: Path, key: Path, method: str) -> None:
    """In a process of its own: play rounds with the whole table of items, as a server would send it."""
    began = time.process_time()
    import torch

    from federec.federation.state import State
    from federec.network.device import answer
    from federec.network.device_folder import DeviceFolder
    from federec.network.keys import Key
    from federec.network.messages import Order, Reply
    from federec.network.parameters import Payload
    from federec.runs.config import RunConfig

    torch.set_num_threads(1)
    loading, rounds, sent = time.process_time() - began, [], 0
    with closing(DeviceFolder.open(folder, Key.file(key))) as store:
        n_items = len(store.catalogue)
    config = RunConfig.checked(method=method)
    shared = State.start(config.build(), n_items, 0, 0).shared
    tables = {name: value for name, value in shared.items() if config.build().shared()[name].rows}
    layers = {name: value for name, value in shared.items() if name not in tables}
    ids = torch.arange(n_items) if tables else torch.zeros(0, dtype=torch.int64)
    for number in range(1, ROUNDS + 1):
        shared = Payload(ids, tables, layers)
        order = Order("train", "run", number, config.model_dump(mode="json"), {}, [n_items], shared=shared).pack()
        began = time.process_time()
        reply = answer(lambda: closing(DeviceFolder.open(folder, Key.file(key))), order)
        rounds.append(time.process_time() - began)
        assert not Reply.parse(reply).failed
        sent = len(reply)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"loading": loading, "round": max(rounds), "peak": peak, "sent": sent}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--methods", nargs="+", default=["pfedrec", "fedmf", "fedncf", "fedrap"])
    parser.add_argument("--hub", type=int, default=100, help="users of the hub")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()

    import numpy as np
    from page import bars, put, table

    from federec.data.sets import load
    from federec.network.device_folder import DeviceFolder
    from federec.network.keys import Key

    data = load(asked.data)
    counts = np.bincount(data.users)
    order = np.argsort(counts)
    devices = {"median user": [order[len(order) // 2]], "busiest user": [order[-1]], "hub": range(asked.hub)}
    rows, drawn = [], {}
    for method in asked.methods:
        for name, codes in devices.items():
            with TemporaryDirectory() as folder:
                key = Key.new_file(Path(folder) / "key")
                DeviceFolder.share(Path(folder) / "device", key, data, [int(code) for code in codes]).close()
                command = [sys.executable, __file__, folder, method]
                child = subprocess.run(
                    command, check=True, capture_output=True, text=True, env=os.environ | {"PLAY": "1"}
                )
            said = json.loads(child.stdout)
            touched = int(counts[list(codes)].sum())
            figures = f"{said['loading']:.2f}", f"{said['round']:.3f}", f"{said['peak']}", f"{said['sent'] / 1024:.0f}"
            rows.append([f"{method}, {name}", f"{touched:,}", *figures])
            drawn[rows[-1][0]] = {"": said["round"]}
            print(*rows[-1], flush=True)
    head = [f"device, {asked.data}", "interactions", "loading, CPU s", "round, CPU s", "peak MB", "sent kB"]
    print(f"\n{table(head, rows)}")
    if asked.page:
        drawing = bars("device", "CPU seconds of a device's part of a round", drawn)
        put("device", "What taking part costs a device", f"{table(head, rows)}\n\n{drawing}")


if __name__ == "__main__":
    if os.environ.get("PLAY"):
        play(Path(sys.argv[1]) / "device", Path(sys.argv[1]) / "key", sys.argv[2])
    else:
        main()
