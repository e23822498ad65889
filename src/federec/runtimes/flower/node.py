"""A node of a federation: asks the server for orders and answers them, in this process, from its device folder.

It speaks Flower's Fleet API (`fleet.py`) with the key of the device folder. It runs only what is installed here:
nothing that comes over the network is ever executed. It listens on no port, and writes only to its folder and to
stderr.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from federec.errors import UserError
from federec.files import read_bytes
from federec.methods.references import TRUSTED, absolute
from federec.network import device
from federec.network.certificates import Identity
from federec.network.device_folder import DeviceFolder
from federec.network.hiding import Sums
from federec.network.keys import Key
from federec.runtimes.flower.fleet import HEARTBEAT, Delivered, Fleet, Lost, Refused
from federec.runtimes.flower.records import MEGABYTES, is_loopback

_SOON, _LATER = 0.2, 15.0  # seconds until the next attempt, after the first failure and after many
_MOST_REASONS = 100  # that are counted; a server decides how many there are
_BEAT = HEARTBEAT * 0.4  # seconds between signs of life


def join(
    server: str,
    folder: Path,
    key: Path,
    root: Path | None = None,
    insecure: bool = False,
    trusted: Iterable[str] = (),
    megabytes: int = MEGABYTES,
) -> None:
    """Take part with a device folder until stopped. `trusted` are references of what the server may ask the device to
    run besides federec's own methods."""
    host = server.rpartition(":")[0].strip("[]")
    if not host:
        raise UserError(f"{server}: write it as HOST:PORT")
    if insecure and not is_loopback(host):
        raise UserError(f"{host}: --insecure is for a server on this machine; leave it out, and give --root")
    os.umask(0o077)
    _set_up_log()
    os.environ |= trusting(trusted)
    unlock = Key.file(key)
    with closing(DeviceFolder.open(folder, unlock)) as opened:
        identity, told = opened.identity, opened.policy.words(opened.active)
        trust = opened.root if root is None else read_bytes(root)
    if not identity.certificate:
        raise UserError(f"{folder}: was not admitted to a federation yet; begin with: federec device request")
    say("\n".join(("What a server can make this device do:", *told)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _only_one(folder):
        Participant(server, folder, unlock, identity, b"" if insecure else trust, megabytes << 20).stay()


def trusting(references: Iterable[str]) -> dict[str, str]:
    """The environment of a node that may run these methods and plug-ins besides federec's own."""
    known = [*filter(None, [os.environ.get(TRUSTED)]), *map(absolute, references)]
    return {TRUSTED: ",".join(known)} if known else {}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Participant:
    """One device folder at one server."""

    def __init__(
        self, server: str, folder: Path, key: Key, identity: Identity, root: bytes, most: int = MEGABYTES << 20
    ) -> None:
        """`root` is the certificate that the server's must be signed by; where there is none, TLS is not used."""
        self.server, self.folder, self.key, self.identity, self.most = server, folder, key, identity, most
        self.root = root
        self.sums = Sums()
        self.said = ""

    def stay(self) -> None:
        """Take part; connect again whenever the connection is lost."""
        pause = _SOON
        while True:
            try:
                for _ in self.orders(self.connected()):
                    pause = _SOON
            except Refused as refused:
                self.tell(f"the server refuses this device: {refused}")
                pause = pause if refused.status in (429, 503) else _LATER
            except (Lost, ValueError) as error:
                self.tell(f"no connection to {self.server}: {error}; trying again")
            time.sleep(pause)
            pause = min(_LATER, pause * 2)

    def tell(self, text: str) -> None:
        """Say something, unless it was the last that was said."""
        if text != self.said:
            say(text)
        self.said = text

    def connected(self) -> Fleet:
        """The server, as this device reaches it."""
        try:
            return Fleet(self.server, self.identity.key, self.root, self.most)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise UserError(f"--root is not a certificate ({error}); ask the server's operator for ca.crt") from None

    def orders(self, fleet: Fleet) -> Iterator[None]:
        """Answer orders, one after the other; yields whenever the server was there."""
        node = fleet.activate()
        self.tell(f"connected to {self.server} as device {node}")
        try:
            with self.alive(fleet, node):
                while True:
                    yield
                    for message in fleet.pull(node):
                        self.reply(fleet, node, message)
        finally:
            with suppress(Lost, Refused):
                fleet.deactivate(node)

    def opened(self) -> closing[DeviceFolder]:
        """The folder, as it is now: other commands may have changed it since the last order."""
        return closing(DeviceFolder.open(self.folder, self.key))

    def reply(self, fleet: Fleet, node: int, message: Delivered) -> None:
        """Do what an order says. A reply that the server does not wait for any more is dropped."""
        content = device.answer(self.opened, message.content, self.sums)
        try:
            fleet.push(node, message, content)
        except ValueError as error:
            say(f"{error}; it was not sent")
        except Refused as refused:
            if refused.status not in (403, 413):
                raise
            say(f"the server did not take a reply: {refused}")

    @contextmanager
    def alive(self, fleet: Fleet, node: int) -> Iterator[None]:
        """Let the server know that the device is there, however long its work takes."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(_BEAT):
                with suppress(Lost, Refused):  # the main thread notices, too
                    fleet.beat(node)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Two nodes on one folder would take each other's orders."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"{folder}: takes part already, in another process") from None
    finally:
        os.close(handle)


class Repeats(logging.Filter):
    """Lets a device's refusal through that repeats only the 1st, 2nd, 4th, 8th, ... time: a server that asks for what
    the policy does not allow asks in every round."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != device.log.name or record.exc_info or not isinstance(record.args, tuple):
            return True
        why = str(record.args[-1])  # without the number of the round
        if len(self.counts) >= _MOST_REASONS and why not in self.counts:
            self.counts.clear()
        count = self.counts[why] = self.counts.get(why, 0) + 1
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} (time {count})", ()
        return count & (count - 1) == 0


def _set_up_log() -> None:
    """What a device could not do is said on stderr."""
    stderr = logging.StreamHandler()
    stderr.addFilter(Repeats())
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING, handlers=[stderr])
