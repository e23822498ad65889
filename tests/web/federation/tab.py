"""A tab as a node of a federation in this process: the device of the page's modules, in node."""

import json
import math
from contextlib import closing

from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.web.gateway.server import described

BEGIN = """const curve = {name: "ECDSA", namedCurve: "P-256"};
const key = await crypto.subtle.importKey("pkcs8", secret, curve, false, ["sign"]);
const values = new store.MemoryStore();
const own = {labels, slot: BigInt(slot), cohort};
const begun = device.newState({key, certificate}, certificates.fromPem(root), Float32Array.from(begin), own);
await values.put(device.STATE, begun);
const told = [];
const tab = new device.Device(values, async () => kept[name].picks, (text) => told.push(text));
kept[name] = {store: values, told, picks, device: tab};
"""


def start_of(run):
    """What every device's private parameters begin with in the run of a folder, as a gateway tells it."""
    return json.loads(described(run, b""))["start"]


class TabNode:
    """Takes the place of a device folder of one user, with its key, its number and its history."""

    users = 1

    def __init__(self, console, run, path, key, cohort=2):
        self.console, self.name = console, f"{run} {path.name}"
        with closing(DeviceFolder.open(path, Key.file(key))) as folder:
            history = folder.history(0)
            labels = folder.catalogue.labels
            picks = [
                {"label": labels[item], "time": None if math.isnan(time) else time}
                for item, time in zip(history.items.tolist(), history.times.tolist(), strict=True)
            ]
            console(
                BEGIN,
                name=self.name,
                secret=folder.identity.secret(),
                certificate=folder.identity.certificate,
                root=folder.root.decode(),
                slot=str(folder.slots[0]),
                begin=start_of(run),
                labels=list(labels),
                cohort=cohort,
                picks=picks,
            )

    def answer(self, content, crash=""):
        return self.console("return kept[name].device.answer(content);", name=self.name, content=content)

    @property
    def told(self):
        return self.console("return kept[name].told;", name=self.name)

    def close(self):
        pass
