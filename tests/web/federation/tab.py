"""A tab as a node of a federation in this process: the device of the page's modules, in node."""

import math
from contextlib import closing

import torch

from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.parameters import start
from federec.network.settings import FederationSettings
from federec.runs.folder import RunFolder

BEGIN = """const key = await crypto.subtle.importKey("pkcs8", secret, {name: "ECDSA", namedCurve: "P-256"}, false, ["sign"]);
const values = new store.MemoryStore();
const der = certificates.fromPem(root);
const state = await device.newState({key, certificate}, der, Float32Array.from(begin), labels, cohort);
await values.put("device", {...state, slot: BigInt(slot)});
const told = [];
kept[name] = {store: values, told, picks, device: new device.Device(values, async () => kept[name].picks, (text) => told.push(text))};
"""


def start_of(run):
    """What every device's private parameters begin with in the run of a folder."""
    config, settings = RunFolder(run).config(), FederationSettings.read(run)
    private = start(config.build(), settings.sizes, 1, config.seed).private
    return torch.cat([value[0].flatten() for value in private.values()]).tolist()


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
                name=self.name, secret=folder.identity.secret(), certificate=folder.identity.certificate, root=folder.root.decode(), slot=str(folder.slots[0]), begin=start_of(run), labels=list(labels), cohort=cohort, picks=picks,
            )

    def answer(self, content, crash=""):
        return self.console("return kept[name].device.answer(content);", name=self.name, content=content)

    @property
    def told(self):
        return self.console("return kept[name].told;", name=self.name)

    def close(self):
        pass
