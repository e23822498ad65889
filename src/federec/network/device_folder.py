"""A device folder: what its users did and what was learned from it, on the device's own disk.

Everything is in one vault, `device.db`: the catalogue, the users, a history for each of them, the device's identity and
policy, the shared rows that reached it and, for the newest round of a run, private parameters as they are after it and
as they were before it. Answers are kept as they left: a device answers once, and whoever asks the same again gets the
same bytes.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import time as clock
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
from safetensors.numpy import load, save

from federec.data.interactions import Interactions
from federec.data.split import Split, Ties, hold_out
from federec.errors import UserError, did_you_mean
from federec.files import cannot_write, make_folder, write_atomic
from federec.network.catalogue import Catalogue
from federec.network.history import History
from federec.network.keys import Key
from federec.network.ledger import Ledger
from federec.network.vault import Lock, Vault, lock_of

if TYPE_CHECKING:  # commands that only record something need not wait for these
    from federec.network.certificates import Identity
    from federec.network.parameters import Payload
    from federec.network.policy import Policy
    from federec.runs.config import RunConfig

FILE = "device.db"


class Private(Protocol):
    """A state that holds private parameters: of torch (`federation.State`) or of NumPy (`light.LightState`)."""

    def copy(self) -> Self: ...

    def take(self, user: int) -> bytes:
        """One user's part."""

    def put(self, user: int, taken: bytes) -> None:
        """Put what was taken back."""


P = TypeVar("P", bound=Private)


@dataclass(frozen=True)
class Head:
    """The newest round that the device took part in."""

    run: str
    round: int
    before: int
    """The round before it here, to whose end the device can go back; 0 means the start."""
    keep: int
    """Another round whose end is kept, because the server may come back to it; 0 means none."""
    time: float
    config: dict[str, Any]
    """The run's settings."""
    sizes: list[int]
    """How many items the catalogue had in the run, from the first round on."""

    def newest(self, round_: int) -> int:
        """The round after which the device stood before it plays `round_`."""
        if round_ <= self.before:
            raise UserError(
                f"round {round_} of run '{self.run}' cannot be played again: this device is at round {self.round} and "
                f"only keeps the one before it; start a new run"
            )
        return self.round if round_ > self.round else self.before


class DeviceFolder:
    """An open device folder."""

    def __init__(self, path: Path, key: Key) -> None:
        check_folder(path)
        self.path, self._vault = path, Vault(path / FILE, key)
        if self._vault.get("identity") is None:
            self._upgrade()
        self.catalogue = Catalogue.parse(self._vault.need("catalogue"))
        users = json.loads(self._vault.need("users"))
        self.users: list[str] = [label for label, _ in users]
        self.slots: list[int] = [slot for _, slot in users]
        """Each user's number in the federation's random streams."""
        self.ledger = Ledger(self._vault)
        self._read: list[int] = []

    @staticmethod
    def open(path: Path, key: Key) -> DeviceFolder:
        """The device folder at `path`."""
        return DeviceFolder(path, key)

    @staticmethod
    def create(
        path: Path, key: Key, catalogue: Catalogue, users: Sequence[str], slots: Sequence[int] | None = None
    ) -> DeviceFolder:
        """A new folder. `slots` are the users' numbers in the federation; random if not given."""
        slots = [secrets.randbelow(2**63) for _ in users] if slots is None else slots
        return _create(path, key, catalogue, list(zip(users, slots, strict=True)), [History.empty()] * len(users))

    @staticmethod
    def share(path: Path, key: Key, data: Interactions, codes: Sequence[int]) -> DeviceFolder:
        """A new folder that hosts some users of a data set, under the numbers that they have in it."""
        order = np.argsort(data.users, kind="stable")
        ptr = np.searchsorted(data.users[order], np.arange(data.n_users + 1))
        unknown = np.full(len(data), np.nan, np.float32)
        ratings = unknown if data.ratings is None else data.ratings.astype(np.float32)
        times = unknown.astype(np.float64) if data.times is None else data.times
        histories = []
        for code in codes:
            own = order[ptr[code] : ptr[code + 1]]
            histories.append(History(data.items[own], times[own], ratings[own]))
        users = [(str(data.user_ids[code]), int(code)) for code in codes]
        return _create(path, key, Catalogue.of(data), users, histories)

    def close(self) -> None:
        """Close the file. What was written is safe without this."""
        self._vault.close()

    def _upgrade(self) -> None:
        """Give a folder of version 0.2 or older what it lacks."""
        from federec.network.certificates import Identity

        with self._vault.change():
            self._vault.put("identity", Identity.new().secret())
            self._vault.put("policy", b"{}")
            self._vault.delete("secret")

    # What users did

    def user(self, label: str | None = None) -> int:
        """The local number of a user; where there is only one, `label` may be left out."""
        if label is None and len(self.users) == 1:
            return 0
        if label is None:
            raise UserError(f"{self.path}: hosts {len(self.users):,} users; say which one is meant with --user")
        if label not in self.users:
            known = did_you_mean(label, self.users) if len(self.users) <= 20 else ""
            raise UserError(f"{self.path}: hosts no user '{label}'{known}")
        return self.users.index(label)

    @property
    def active(self) -> int:
        """How many of its users have done something."""
        return sum(len(self.history(user)) > 0 for user in range(len(self.users)))

    def history(self, user: int) -> History:
        """A user's interactions."""
        return History.of(self._vault.need(f"history {user}"))

    def add(self, user: int, item: str, time: float | None = None, rating: float | None = None) -> None:
        """Record an interaction, now if no time is given; one that is there already is brought up to date."""
        code = self.catalogue.code(item)
        if rating is not None and not math.isfinite(rating):
            raise UserError(f"rating {rating} is not a finite number; leave it out where there is none")
        with self._vault.change():
            new = self.history(user).plus(
                code, clock.time() if time is None else time, math.nan if rating is None else rating
            )
            self._vault.put(f"history {user}", new.dump())

    def forget(self, user: int, item: str | None = None) -> None:
        """Erase an interaction, or all of a user's; and the user's private parameters, which were learned from it."""
        code = None if item is None else self.catalogue.code(item)
        with self._vault.change():
            old = self.history(user)
            left = History.empty() if code is None else old.without(code)
            if item is not None and len(left) == len(old):
                raise UserError(f"'{item}' is not among the interactions of '{self.users[user]}'; nothing was erased")
            self._vault.put(f"history {user}", replace(left, forgets=old.forgets + 1).dump())
            for name in self._vault.names(f"state {user} "):
                self._vault.delete(name)
        self._vault.scrub()

    def interactions(self, catalogue: Catalogue | None = None) -> Interactions:
        """All interactions; users are numbered as they are hosted, items as in the catalogue, or in a newer one."""
        catalogue = catalogue or self.catalogue
        histories = [self.history(user) for user in range(len(self.users))]
        self._read = [history.forgets for history in histories]
        items, times, ratings = (
            np.concatenate([getattr(history, part) for history in (History.empty(), *histories)])
            for part in ("items", "times", "ratings")
        )
        timed = ~np.isnan(times)
        return Interactions(
            name="device",
            users=np.repeat(np.arange(len(histories)), [len(history) for history in histories]).astype(np.int32),
            items=items,
            user_ids=np.array(self.users, object),
            item_ids=np.array(catalogue.labels, object),
            times=np.where(timed, times, -np.inf) if timed.any() else None,  # what has no time is older than the rest
            ratings=None if np.isnan(ratings).any() else ratings,
            titles=catalogue.titles,
        )

    def split(self, seed: int, catalogue: Catalogue | None = None, ties: Ties = "random") -> Split:
        """What the users train on and what is held out, as in a local run with the same seed."""
        return hold_out(self.interactions(catalogue), seed, ties, np.array(self.slots, np.int64))

    def grow(self, catalogue: Catalogue) -> None:
        """Take a newer catalogue from the server, within a change."""
        if not catalogue.extends(self.catalogue):
            old, new = self.catalogue.version, catalogue.version
            raise UserError(f"{self.path}: catalogue {new} renumbers items of {old}; a catalogue may only grow")
        self._vault.put("catalogue", catalogue.text().encode())
        self.catalogue = catalogue

    # What it is to others, and what it does for them

    @property
    def identity(self) -> Identity:
        """The key by which the server and other devices know this one, and its certificate."""
        from federec.network.certificates import Identity

        return Identity.parse(self._vault.need("identity"), self._vault.get("certificate") or b"")

    @property
    def root(self) -> bytes:
        """The federation's root certificate (PEM); empty before the device was admitted."""
        return self._vault.get("root") or b""

    def admit(self, certificate: bytes, root: bytes) -> None:
        """Keep the certificate (PEM or DER) with which the root (PEM) admits this device."""
        identity = self.identity.admitted(certificate, root)
        with self._vault.change():
            self._vault.put("certificate", identity.certificate)
            self._vault.put("root", root)

    def renew(self) -> None:
        """Take a new key; it has to be admitted anew."""
        from federec.network.certificates import Identity

        with self._vault.change():
            self._vault.put("identity", Identity.new().secret())
            self._vault.delete("certificate")

    @property
    def policy(self) -> Policy:
        """What may leave."""
        from federec.network.policy import Policy

        return Policy.checked(**json.loads(self._vault.need("policy")))

    def pin(self, policy: Policy) -> None:
        """Decide what may leave from now on."""
        with self._vault.change():
            self._vault.put("policy", policy.model_dump_json().encode())

    def change(self) -> AbstractContextManager[None]:
        """Everything kept within is kept, or nothing of it."""
        return self._vault.change()

    # What was learned

    @property
    def head(self) -> Head | None:
        """The newest round; None where there was none."""
        value = self._vault.get("head")
        return None if value is None else Head(**json.loads(value))

    def begin(self, run: str, round_: int, start: P) -> P:
        """The state before a round: private parameters as they were, those of `start` where a user has none yet, and
        all else of `start`. A round that was played here already, but of which the server never heard, can be begun
        again."""
        head = self.head
        self._read = self._read or self._forgets()
        return self.after(run, head.newest(round_) if head is not None and head.run == run else 0, start)

    def after(self, run: str, round_: int, start: P) -> P:
        """The state after a round that is kept, as `begin` gives it; after the one before, where the device missed it.
        After round 0 all users stand at the start."""
        state, head = start.copy(), self.head
        if round_ == 0:
            return state
        if head is None or head.run != run or round_ < min(head.keep or head.before, head.round):
            raise UserError(f"{self.path}: keeps nothing of round {round_} of run '{run}'")
        round_ = self._kept(round_)
        for user in range(len(self.users)):
            if (value := self._vault.get(f"state {user} {round_}")) is not None:
                state.put(user, value)
        return state

    def commit(
        self,
        run: str,
        round_: int,
        state: Private,
        seen: Payload,
        config: RunConfig,
        sizes: Sequence[int] = (),
        keep: int = 0,
    ) -> None:
        """Keep the outcome of the round begun last, within a change. What another run learned goes. A user who has
        erased something since the interactions were read starts anew. What was kept after round `keep` stays. `sizes`
        are those of the catalogue in this run, if it has grown."""
        head, before = self.head, 0
        if head is not None and head.run == run:
            before, seen = head.newest(round_), self.seen().merged(seen)
            keep = self._kept(keep)
        stays = {before, keep} if before else set()
        for name in self._vault.names("state "):
            if int(name.split()[2]) not in stays:
                self._vault.delete(name)
        for user, (forgets, then) in enumerate(zip(self._forgets(), self._read, strict=True)):
            if forgets == then:
                self._vault.put(f"state {user} {round_}", state.take(user))
        self._vault.put("seen", save(seen.arrays()))
        sizes = list(sizes) or [len(self.catalogue)]
        newest = Head(run, round_, before, keep, clock.time(), config.model_dump(mode="json"), sizes)
        self._vault.put("head", json.dumps(asdict(newest)).encode())

    def _kept(self, round_: int) -> int:
        """The newest round up to this one whose end is kept; 0 means that none is."""
        rounds = {int(name.split()[2]) for name in self._vault.names("state ")}
        return max((number for number in rounds if number <= round_), default=0)

    def seen(self) -> Payload:
        """Shared parameters as they last reached the device."""
        from federec.network.parameters import Payload

        value = self._vault.get("seen")
        return Payload.nothing() if value is None else Payload.parse(load(value))

    def _forgets(self) -> list[int]:
        return [self.history(user).forgets for user in range(len(self.users))]


def share_out(path: Path, data: Interactions, count: int) -> None:
    """Device folders for the federation prepared in a folder, which share a data set's users: `devices/device-0`, its
    key `secrets/device-0`, its certificate `nodes/device-0.crt`, ... They are admitted by a new root in `tls`, and
    their policy is what the run needs."""
    from federec.network.certificates import Authority
    from federec.network.policy import Policy, smallest_cohort
    from federec.runs.folder import RunFolder

    policy = Policy.of(RunFolder(path).config(), smallest_cohort(count))
    authority = Authority.create(path / "tls")
    for part in ("devices", "secrets", "nodes"):
        make_folder(path / part)
        (path / part).chmod(0o700)
    for number in range(count):
        name, users = f"device-{number}", range(number, data.n_users, count)
        folder = DeviceFolder.share(path / "devices" / name, Key.new_file(path / "secrets" / name), data, users)
        certificate = authority.admit(folder.identity.request(), len(users))
        write_atomic(path / "nodes" / f"{name}.crt", certificate)
        folder.admit(certificate, authority.pem)
        folder.pin(policy)
        folder.close()


def shares(path: Path) -> list[tuple[Path, Path]]:
    """The device folders that `share_out` made, each with its key file."""
    folders = sorted((path / "devices").glob("device-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
    return [(folder, path / "secrets" / folder.name) for folder in folders]


def check_folder(path: Path) -> None:
    """Refuse what is not a device folder."""
    if not (path / FILE).is_file():
        raise UserError(f"{path}: is not a device folder (no {FILE}); make one with: federec device init")


def check_free(path: Path) -> None:
    """Refuse a path where something exists already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "is a device folder already" if (path / FILE).is_file() else "exists and is not empty"
        raise UserError(f"{path}: {what}; choose another path")


def lock(path: Path) -> Lock:
    """What is known of a folder without its key."""
    check_folder(path)
    return lock_of(path / FILE)


def erase(path: Path) -> None:
    """Erase a device folder with everything in it; no key is needed for that."""
    check_folder(path)
    shutil.rmtree(path)


def _create(
    path: Path, key: Key, catalogue: Catalogue, users: list[tuple[str, int]], histories: list[History]
) -> DeviceFolder:
    """Made beside its path, and moved there when it is complete."""
    from federec.network.certificates import Identity

    check_free(path)
    if len(dict(users)) < len(users) or len({slot for _, slot in users}) < len(users):
        raise UserError(f"{path}: a user is given twice")
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        make_folder(part)
        part.chmod(0o700)
        vault = Vault.create(part / FILE, key)
        with vault.change():
            vault.put("catalogue", catalogue.text().encode())
            vault.put("identity", Identity.new().secret())
            vault.put("policy", b"{}")
            vault.put("users", json.dumps(users).encode())
            for user, history in enumerate(histories):
                vault.put(f"history {user}", history.dump())
        vault.close()
        part.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return DeviceFolder(path, key)
