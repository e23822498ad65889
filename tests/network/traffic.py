"""Searching what a server received for what devices keep to themselves.

`search` is given everything that arrived, as bytes, and everything private. It looks for

* labels of users, as text;
* times of interactions, as text or numbers;
* an order of interactions: eight of a user's codes as they followed one another, in any number type;
* a list of interactions: codes of which all are one user's, or values of which only those of a user's items are not
  zero;
* numbers of users: a list of them;
* parameters: four values that follow one another in a private vector, in any float type, wherever they lie;

in the bytes as they are, and in what is packed in them: safetensors, JSON, base64, hexadecimal, zlib and gzip.
"""

import base64
import binascii
import json
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

WINDOW = 4
ORDER = 8
FLOATS = ("<f4", ">f4", "<f8", "<f2", "bfloat16")
NUMBERS = ("<i4", ">i4", "<i8", "<i2", "<f4", "<f8")
_MIX = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)
_PACKED = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")


@dataclass
class Secrets:
    """What some devices keep to themselves."""

    items: int
    """How many the catalogue has."""
    labels: list[str] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    histories: list[list[int]] = field(default_factory=list)
    """Each user's item codes, oldest first."""
    times: list[float] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)
    """Private parameters, flat."""

    def learn(self, store, start):
        """Take in all that a device folder holds. What every device starts with is no secret."""
        from federec.federation.state import State

        self.labels += store.users
        self.slots += store.slots
        for user in range(len(store.users)):
            history = store.history(user)
            self.histories.append(history.items[np.argsort(history.times, kind="stable")].tolist())
            self.times += history.times[~np.isnan(history.times)].tolist()
        head = store.head
        common = {value[0].numpy().tobytes() for value in start.private.values()}
        for number in {head.round, head.before} if head else ():
            state: State = store.after(head.run, number, start)
            own = [value[user] for value in state.private.values() for user in range(len(store.users))]
            own += [
                row for held in state.stores.values() for user in range(len(store.users)) for row in held.own(user)[1]
            ]
            self.vectors += [v.flatten().numpy() for v in own if v.numel() and v.numpy().tobytes() not in common]
        return self


def recorded(folder: Path) -> list[dict[str, bytes]]:
    """Messages that a server wrote down: files NUMBER-PART.*, those of one message together."""
    messages: dict[str, dict[str, bytes]] = {}
    for file in sorted(folder.iterdir()):
        number, _, part = file.name.partition("-")
        messages.setdefault(number, {})[part] = file.read_bytes()
    return [*messages.values()]


def search(messages: list[dict[str, bytes]], secrets: Secrets) -> list[str]:
    """Where something private is in a message; nothing where all is well."""
    needles = [*_needles(secrets)]
    found = []
    for number, message in enumerate(messages):
        for part, blob in message.items():
            for way, data in unpacked(blob):
                found += [f"message {number}, {part}{way}: {what}" for what in _in_bytes(data, secrets, needles)]
        arrays = {f"{part} {name}": array for part, blob in message.items() for name, array in arrays_of(blob)}
        found += [f"message {number}, {what}" for what in _in_arrays(arrays, secrets)]
    return found


def unpacked(blob: bytes, way: str = "", depth: int = 3):
    """The bytes, and what is packed in them."""
    yield way, blob
    if not depth:
        return
    for bits in (15, 31, -15):
        with suppress(zlib.error):
            yield from unpacked(zlib.decompressobj(bits).decompress(blob), f"{way} zlib", depth - 1)
    for text in _PACKED.findall(blob):
        for name, unpack in (("hex", binascii.unhexlify), ("base64", _base64)):
            try:
                data = unpack(text)
            except (binascii.Error, ValueError):
                continue
            yield from unpacked(data, f"{way} {name}", depth - 1)


def arrays_of(blob: bytes):
    """Named arrays in a blob: tensors of safetensors, lists of JSON."""
    for _, data in unpacked(blob):
        with suppress(SafetensorError, ValueError, KeyError, RuntimeError):
            for name, tensor in load(data).items():
                yield name, (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        with suppress(ValueError, RecursionError):
            yield from _lists(json.loads(data))


def _lists(value, name="json"):
    if isinstance(value, dict):
        yield from _lists([int(k) for k in value if str(k).isdecimal()], f"{name} keys")
        for key, inner in value.items():
            yield from _lists(inner, f"{name}.{key}")
    elif isinstance(value, list):
        if value and all(isinstance(v, int | float) for v in value):
            yield name, np.array(value, np.float64)
        else:
            for inner in value:
                yield from _lists(inner, name)


def _needles(secrets):
    """(what, number type, window, hashes of windows that must not occur)."""
    for kind in FLOATS:
        vectors = []
        for vector in secrets.vectors:
            if len(bits := _bits(vector, kind)) >= WINDOW:
                sorted_ = np.sort(np.lib.stride_tricks.sliding_window_view(bits, WINDOW), 1)
                telling = (np.diff(sorted_.astype(np.int64), axis=1) != 0).sum(1) >= 2  # zeros are in everything
                vectors.append(_hashes(bits, WINDOW)[telling])
        yield "private parameters", kind, WINDOW, _union(vectors)
    for kind in NUMBERS:
        orders = []
        for history in secrets.histories:
            if len(history) >= ORDER:
                falls = np.diff(np.lib.stride_tricks.sliding_window_view(history, ORDER), axis=1) < 0
                orders.append(_hashes(_bits(np.array(history), kind), ORDER)[falls.any(1)])  # sorted, it tells no order
        yield "an order of interactions", kind, ORDER, _union(orders)


def _union(hashes):
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


def _bits(values, kind):
    """Values as unsigned integers of the bits that a number type has for them."""
    if kind == "bfloat16":
        return torch.from_numpy(np.array(values, np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    with np.errstate(over="ignore"):
        cast = np.array(values).astype(kind)
    return cast.view(f"<u{cast.dtype.itemsize}")


def _hashes(bits, window):
    """A 64-bit hash of every window of so many values that follow one another."""
    if len(bits) < window:
        return np.zeros(0, np.uint64)
    total = np.zeros(len(bits) - window + 1, np.uint64)
    for place in range(window):
        total = (total ^ bits[place : place + len(total)].astype(np.uint64)) * _MIX[place % len(_MIX)]
        total ^= total >> np.uint64(29)
    return total


def _in_bytes(data, secrets, needles):
    for what, kind, window, hashes in needles:
        size = 2 if kind == "bfloat16" else np.dtype(kind).itemsize
        for offset in range(size if len(hashes) else 0):
            bits = np.frombuffer(data[offset : offset + (len(data) - offset) // size * size], f"<u{size}")
            there = _hashes(bits, window)
            if (hashes[np.searchsorted(hashes, there).clip(max=len(hashes) - 1)] == there).any():
                yield f"{what} ({kind})"
    for label in secrets.labels:
        texts = [json.dumps(label).encode()] + ([label.encode(), label.encode("utf-16-le")] if len(label) > 5 else [])
        if any(text in data for text in texts):
            yield f"the label '{label}'"
    for time in {t for t in secrets.times if abs(t) >= 1e6}:  # small ones are in everything
        forms = [np.array(time, kind).tobytes() for kind in (np.float64, np.int64)]
        if any(form in data for form in (*forms, str(int(time)).encode())):
            yield f"the time {time:.0f}"


def _in_arrays(arrays, secrets):
    """Lists and patterns of interactions, lists of users."""
    flat = {name: array.ravel() for name, array in arrays.items()}
    codes = {name: _codes(array) for name, array in flat.items()}
    users = [{*history} for history in secrets.histories]
    listings = {name: {*values} for name, values in codes.items() if values is not None}
    for name, array in arrays.items():  # which rows are not zero, by place and by the codes that came with them
        marked = _marked(array)
        if marked is None:
            continue
        if len(array) == secrets.items:
            listings[f"{name} is not zero"] = {*marked}
        for other, values in codes.items():
            if values is not None and other != name and len(values) == len(array) and len(marked) < len(array):
                listings[f"{name} is not zero at {other}"] = {values[place] for place in marked}
    for name, items in listings.items():
        for user, history in enumerate(users):
            if len(items) >= 3 and items <= history:
                yield f"{name}: interactions of user {user} and nothing else"
    if len(slots := {*secrets.slots}) >= 3 and max(slots) >= len(slots):  # 0, 1, 2 ... tell nothing
        yield from (f"{name}: numbers of users" for name, values in listings.items() if values == slots)


def _codes(values):
    """The array as whole numbers, if that is what it holds."""
    if not len(values) or values.dtype == bool or not np.isfinite(values.astype(np.float64)).all():
        return None
    whole = values.astype(np.int64)
    return whole.tolist() if (whole == values).all() and (whole >= 0).all() else None


def _marked(array):
    """Places of rows that are not zero, where some are and some are not."""
    if array.ndim == 0 or not len(array):
        return None
    marked = np.flatnonzero((array != 0).reshape(len(array), -1).any(1))
    return marked.tolist() if 0 < len(marked) < len(array) else None


def _base64(text):
    return base64.b64decode(text.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(text) % 4), validate=True)


def always(messages: list[dict[str, bytes]], part: str) -> set[int]:
    """Codes that one device named in every message: what a curious server guesses its user's items to be."""
    lists = [{*(_codes(array) or ())} for message in messages for name, array in arrays_of(message[part])]
    return set.intersection(*lists) if lists else set()
