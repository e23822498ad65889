"""A tab as a node of a federation in this process: the device of the page's modules, in node."""

import json
import math
from contextlib import closing
from typing import Any, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.web.gateway.server import described
from federec.web.gateway.tokens import encoded

BEGIN = """const values = new store.MemoryStore();
const own = {labels, slot: BigInt(slot), cohort};
await values.put(device.STATE, await client.invited(code, description, own));
const told = [];
const tab = new device.Device(values, async () => kept[name].picks, (text) => told.push(text));
kept[name] = {store: values, told, picks, device: tab};
"""


class TabNode:
    """Takes the place of a device folder of one user, with its key, its number and its history."""

    users = 1
    more: ClassVar[dict[str, Any]] = {}
    """What the gateway says of the federation besides what it should."""

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
                code=_invitation(folder),
                description=json.loads(described(run, folder.root)) | self.more,
                slot=str(folder.slots[0]),
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


def _invitation(folder):
    """The one with which a tab has the identity of a device folder."""
    root = x509.load_pem_x509_certificate(folder.root).fingerprint(hashes.SHA256())
    secret = folder.identity.key.private_numbers().private_value.to_bytes(32)
    return encoded(b"\1" + root + secret + folder.identity.certificate)
