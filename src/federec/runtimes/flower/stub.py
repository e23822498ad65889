"""Until `DeviceFolder` has an identity and a policy of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from federec.network.certificates import Identity
from federec.network.device_folder import DeviceFolder


def _identity(self: Any) -> Identity:
    secret = self._vault.get("identity key")
    if secret is None:
        secret = Identity.new().secret()
        with self._vault.change():
            self._vault.put("identity key", secret)
    return Identity.parse(secret, self._vault.get("identity certificate") or b"")


def _admit(self: Any, certificate: bytes, root: bytes) -> None:
    with self._vault.change():
        self._vault.put("identity certificate", self.identity.admitted(certificate, root).certificate)


if not hasattr(DeviceFolder, "identity"):
    DeviceFolder.identity = property(_identity)  # type: ignore[attr-defined]
    DeviceFolder.admit = _admit  # type: ignore[attr-defined]
    DeviceFolder.policy = SimpleNamespace(words=lambda: ["it may run the methods of federec on its histories"])  # type: ignore[attr-defined]
