"""What a federation costs beyond Flower itself: `python benchmarks/federation.py`.

Rounds of five devices on loopback with TLS and registered keys: ours, and those of an app that does nothing but travel
(`trivial.py`). Prints a table in Markdown. What a device itself spends is in `device.py`.
"""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])

from federec.runtimes.config import RunConfig
from federec.runtimes.flower.catalogue import Catalogue
from federec.runtimes.flower.settings import FederationSettings, prepare
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


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        flower, federation = trivial(Path(scratch) / "trivial"), ours(Path(scratch) / "ours")
    print("| seconds of a round, five devices | median | least |\n| --- | --- | --- |")
    for name, values in (("an app that only travels", flower), ("pfedrec on tastes", federation)):
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} |")


if __name__ == "__main__":
    main()
