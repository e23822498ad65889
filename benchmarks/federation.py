"""What a federation costs beyond Flower itself: `python benchmarks/federation.py`.

Rounds of five devices on loopback, ours and those of an app that does nothing but travel (`trivial.py`), with TLS and
registered keys; and one device's update of ML-1M: its CPU time and memory. Prints a table in Markdown.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])

from federec.runtimes.config import RunConfig
from federec.runtimes.flower.catalogue import Catalogue
from federec.runtimes.flower.keys import Key
from federec.runtimes.flower.settings import FederationSettings, prepare
from federec.runtimes.flower.store import DeviceStore
from federec.runtimes.flower.up import Federation, bring_up, share_out

DEVICES, ROUNDS = 5, 6
APP = """[project]
name = "trivial"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "federec"
[tool.flwr.app.components]
serverapp = "benchmarks.trivial:server"
clientapp = "benchmarks.trivial:client"
[tool.flwr.app.config]
"""


def ours(folder: Path) -> list[float]:
    config = RunConfig.checked(method="pfedrec", data="tastes", rounds=ROUNDS + 1)
    data = config.load()
    prepare(folder, config, FederationSettings.checked(expected=DEVICES), Catalogue.of(data))
    share_out(folder, data, DEVICES)
    for _ in bring_up(folder, tls=True, auth=True):
        pass
    lines = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    return [sum(line["seconds"].values()) for line in lines][1:]


def trivial(folder: Path) -> list[float]:
    app, out = folder / "app", folder / "out.json"
    app.mkdir(parents=True)
    values = {"devices": DEVICES, "rows": 1682, "rounds": ROUNDS, "out": str(out)}
    (app / "pyproject.toml").write_text(
        APP + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    )
    with Federation(folder, tls=True, auth=True) as federation:
        federation.warm_up()
        federation.superlink()
        for number in range(DEVICES):
            federation.register(f"device-{number}")
            federation.node(f"device-{number}", folder, folder)
        federation.run(folder)
        federation.wait(out.exists, 600, "superlink")
    return json.loads(out.read_text())


def device(folder: Path) -> None:
    """A device with one of ML-1M's most active users."""
    data = RunConfig.checked(data="ml-1m").load()
    counts = np.bincount(data.users)
    share = [int(np.argsort(counts)[-len(counts) // 100])]
    DeviceStore.share(folder / "device", Key.new_file(folder / "key"), data, share).close()


def update(folder: Path) -> None:
    """Print CPU seconds of its round, and MB of a process that plays it as the ClientApp does."""
    import torch

    from federec.runtimes.flower.client import Work
    from federec.runtimes.flower.parameters import Seen
    from federec.runtimes.flower.wire import Order

    config = RunConfig.checked(method="pfedrec", data="ml-1m", rounds=1)
    began = time.process_time()
    store = DeviceStore.open(folder / "device", Key.file(folder / "key"))
    n_items, channel = len(store.catalogue), FederationSettings().channel.model_dump(mode="json")
    seen = Seen(torch.arange(n_items), {"items": torch.randn(n_items, 32)})
    order = Order("train", "run", 1, config.model_dump(mode="json"), channel, [n_items], seen=seen)
    Work(order, store).train()
    seconds, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| one device's update, ML-1M | {seconds:.2f} s CPU | {peak:.0f} MB |")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if sys.argv[1:] else None
        if folder is not None:
            update(folder)
            return
        flower, federation = trivial(Path(scratch) / "trivial"), ours(Path(scratch) / "ours")
        print("| seconds of a round, five devices | median | least |\n| --- | --- | --- |")
        for name, values in (("an app that only travels", flower), ("pfedrec on tastes", federation)):
            print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} |", flush=True)
        device(Path(scratch))
        subprocess.run([sys.executable, __file__, scratch], check=True)


main()
