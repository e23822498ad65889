"""Secure aggregation: a server adds up the vectors of many nodes and learns nothing but their sum.

Bonawitz et al. (CCS 2017) with the sparse graphs of Bell et al. (CCS 2020). A node adds to its vector one mask that it
made itself and one mask for each neighbour, which the neighbour subtracts. It shares the secrets behind its masks among
its neighbours, so that the masks of nodes that drop out can be removed. `Party` is a node's part of one session,
`Collector` the server's: bytes in, bytes out. `docs/secure-aggregation.md` says why this is secure and what it does not
promise.

Messages are big-endian and begin with the version, one byte. A node's *position* is its place in the order of all
public keys; a *bitmap* has one bit for each position; *neighbours* are in the order of their positions. Sizes in bytes:

    advert     u16 length, certificate; X25519 keys for shares (32) and for masks (32); u8 length, signature
    roster     session (16), u32 nodes, u32 position, u8 bits, u32 values, hash of all adverts (32);
               for each neighbour u16 length, advert; hashes (32 each) that lead from these adverts to the hash of all
    shares     hash of the self-mask seed (32), tag of the node's own share (16);
               for each neighbour an entry: two tags (16 each), sealed shares (82)
    delivered  bitmap of the nodes that shared; for each neighbour among them the entry it made for this node
    input      hash of the context (32); the masked values, little-endian
    arrived    bitmap of the nodes whose input arrived. To unmask in a sparse graph also the evidence that most nodes
               agreed: bitmap of the signers, hash of all signatures (32); for each sampled signer u16 length, advert,
               u8 length, signature; hashes that lead from the adverts, then from the signatures, to the hash of all
    agreed     u8 length, signature
    unmasked   for each neighbour that shared, and the node itself, by position: a share (33), or 33 bytes 0xff.
               In a complete graph this message is locked: share of the lock (33); for each other node of the set a
               sealed share of the lock (49) and the key (32) to that node's share for this one; the sealed message
"""

from __future__ import annotations

import datetime
import hashlib
import math
import random
import secrets
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from federec.errors import UserError
from federec.network.certificates import Identity, Member, member

T = TypeVar("T")
_VERSION = 1
_PRIME = 2**256 + 297
_SHARE, _TAG = 33, 16  # bytes
_ENTRY = 2 * _TAG + 2 * _SHARE + 16
_NONE = b"\xff" * _SHARE  # not a number below the prime
_COMPLETE = 128  # up to so many nodes everybody is everybody's neighbour
_MOST_NODES = 1 << 20
_DOUBT = 80  # a set that too few have signed is taken for agreed with probability 2^-80


def rule(nodes: int) -> tuple[int, int]:
    """How many neighbours a node has, and how many of these and itself bring back its secrets (the threshold).

    Complete graph, d = n - 1, t = ceil(2n/3): a third of the nodes may drop, whichever they are. The server opens
    answers for two different sets only if t nodes answer for each of them, so if 2t - n >= n/3 answer for both.

    Sparse graph: a node's d neighbours are a random subset of the others, so that with H(N, K, d) the hypergeometric
    distribution of marked ones among d drawn from N of which K are marked, for 129 <= n <= 2^20

        n P[H(n - 1, ceil(2n/3) - 1, d) < t]  <= 10^-3    a third drop at random: all secrets can be brought back
        n P[H(n - 1, floor(n/10), d) >= t]    <= 2^-60    a tenth collude: no node's secrets are known to them
    """
    if nodes <= _COMPLETE:
        return nodes - 1, _most(nodes)
    degree = 2 * math.ceil(4 * math.log2(nodes)) + 24
    return degree, math.ceil(0.44 * degree)


def bits(users: int, steps: int) -> int:
    """Bits of a ring, 32 or 64, in which the sum of so many users' values between -steps and steps does not wrap."""
    if users * steps >= 2**63:
        raise UserError("the sum of all users does not fit into 64 bits; quantise to fewer steps")
    return 32 if users * steps < 2**31 else 64


def _most(nodes: int) -> int:
    """Two thirds of the nodes: so many must be left at each step."""
    return -(-2 * nodes // 3)


def _sample_size(nodes: int, signers: int) -> int:
    """How many signatures a node looks at. Of two different sets one has at most 0.55 n signers, if a tenth of the
    nodes signs both; that all of the sample are among them has at most probability (0.55 n / signers)^size = 2^-80."""
    return min(signers, math.ceil(_DOUBT / math.log2(signers / (0.55 * nodes))))


def _hash(label: str, *parts: bytes) -> bytes:
    """SHA-256 of the parts, which cannot be confused with those of another purpose or shifted against each other."""
    whole = hashlib.sha256(b"federec secure sum %d %s" % (_VERSION, label.encode()))
    for part in parts:
        whole.update(struct.pack(">Q", len(part)) + part)
    return whole.digest()


def _derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt, b"federec secure sum " + info).derive(secret)


def _seal(key: bytes, content: bytes) -> bytes:
    """Sealed with a key that is used for one message only."""
    return AESGCM(key).encrypt(bytes(12), content, None)


def _unseal(key: bytes, sealed: bytes) -> bytes | None:
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        return None


def _opens(sealed: bytes, key: bytes) -> bool:
    return _unseal(key, sealed) is not None


def _stream(key: bytes, count: int, width: int) -> NDArray[Any]:
    """So many uniform words of a ring of `width` bits: AES-256 in counter mode. A key is used for one stream only."""
    content = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(count * width // 8))
    return np.frombuffer(content, f"<u{width // 8}")


def _exchange(private: bytes, publics: Iterable[bytes]) -> list[bytes]:
    key = X25519PrivateKey.from_private_bytes(private)
    return [key.exchange(X25519PublicKey.from_public_bytes(public)) for public in publics]


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


# Shamir's secret sharing of 32 bytes


def _split(secret: bytes, threshold: int, positions: Iterable[int]) -> dict[int, bytes]:
    """A share for each position: any `threshold` of them give the secret, fewer say nothing about it."""
    more = [secrets.randbelow(_PRIME) for _ in range(threshold - 1)]
    return {position: _evaluate([int.from_bytes(secret), *more], position + 1) for position in positions}


def _evaluate(coefficients: Sequence[int], point: int) -> bytes:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % _PRIME
    return value.to_bytes(_SHARE)


def _join(shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool]) -> bytes | None:
    """The secret that fits, from shares by position; None where there are too few. Since its owner may have given some
    shares that do not lie on one curve with the others, up to 16 random choices of shares are tried."""
    for _ in range(16 if len(shares) >= threshold else 0):
        chosen = {position + 1: shares[position] for position in random.sample(sorted(shares), threshold)}
        all_points, top, bottom = math.prod(chosen), 0, 1
        for point, share in chosen.items():  # Lagrange's formula at 0, as one fraction: only one inverse is taken
            below = math.prod(other - point for other in chosen if other != point) % _PRIME
            above = int.from_bytes(share) * (all_points // point)
            top, bottom = (top * below + above * bottom) % _PRIME, bottom * below % _PRIME
        value = top * pow(bottom, -1, _PRIME) % _PRIME
        if value < 1 << 256 and fits(value.to_bytes(32)):
            return value.to_bytes(32)
        if len(shares) == threshold:
            break
    return None


# Sets of nodes, hash trees and graphs


def _pack(members: NDArray[np.bool_]) -> bytes:
    return np.packbits(members).tobytes()


def _fold(leaves: Mapping[int, bytes], count: int, sibling: Callable[[], bytes]) -> bytes:
    """Root of a hash tree with `count` leaves, of which some are known; `sibling` gives the hashes that are missing."""
    known = {place: _hash("leaf", content) for place, content in leaves.items()}
    while count > 1:
        above: dict[int, bytes] = {}
        for place in sorted(known):
            other, pair = place ^ 1, place // 2
            if other >= count:  # the last of an odd number has no sibling
                above[pair] = known[place]
            elif pair not in above:
                beside = known[other] if other in known else sibling()
                above[pair] = _hash("pair", *((known[place], beside) if place < other else (beside, known[place])))
        known, count = above, (count + 1) // 2
    return known[0]


class _Tree:
    """A hash tree over all nodes."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.leaves, self.levels = leaves, [[_hash("leaf", content) for content in leaves]]
        while len(self.levels[-1]) > 1:
            low = self.levels[-1]
            pairs = [_hash("pair", *low[at : at + 2]) for at in range(0, len(low) - 1, 2)]
            self.levels.append(pairs + low[len(pairs) * 2 :])
        self.root = self.levels[-1][0]

    def proof(self, places: Iterable[int]) -> bytes:
        """The hashes that `_fold` needs besides these leaves."""
        found, known = b"", set(places)
        for level in self.levels[:-1]:
            beside = [place ^ 1 for place in sorted(known) if place ^ 1 not in known and place ^ 1 < len(level)]
            found += b"".join(level[place] for place in beside)
            known = {place // 2 for place in known}
        return found


def _shuffled(seed: bytes, count: int) -> NDArray[np.int64]:
    return np.argsort(_stream(seed, count, 64), kind="stable").astype(np.int64)


@lru_cache(maxsize=4)
def _circle(session: bytes, nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The nodes around a table in random order, the seat of each, and at what distances neighbours sit."""
    order = _shuffled(_hash("order", session), nodes)
    near = 1 + _shuffled(_hash("distances", session), (nodes - 1) // 2)[: rule(nodes)[0] // 2]
    return order, np.argsort(order), np.concatenate([near, -near])


def _neighbours(session: bytes, nodes: int, position: int) -> list[int]:
    """The positions of a node's neighbours, which follow from the session: all others, or a random subset of them."""
    if nodes <= _COMPLETE:
        return [other for other in range(nodes) if other != position]
    order, seats, distances = _circle(session, nodes)
    found: list[int] = np.sort(order[(seats[position] + distances) % nodes]).tolist()
    return found


def _sample(session: bytes, signers: NDArray[np.bool_], root: bytes) -> list[int]:
    """The signers whose signatures are looked at. They follow from the signatures, so nobody can choose them first."""
    places = np.flatnonzero(signers)
    chosen = _shuffled(_hash("sample", session, _pack(signers), root), places.size)
    found: list[int] = np.sort(places[chosen[: _sample_size(signers.size, places.size)]]).tolist()
    return found


# Reading what others have written


class _Reader:
    """Takes a message apart; a UserError where it is too short or too long."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0
        if self.take(1)[0] != _VERSION:
            raise UserError("the message is of another version of secure aggregation; install the same federec")

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.content):
            raise UserError("the message is cut short")
        self.at += count
        return self.content[self.at - count : self.at]

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))

    def block(self, form: str) -> bytes:
        """Bytes after their length."""
        return self.take(self.unpack(form)[0])

    def bitmap(self, nodes: int) -> NDArray[np.bool_]:
        found = np.unpackbits(np.frombuffer(self.take(-(-nodes // 8)), np.uint8)).astype(np.bool_)
        if found[nodes:].any():
            raise UserError("the message names nodes that do not exist")
        return found[:nodes]

    def end(self) -> None:
        if self.at != len(self.content):
            raise UserError("the message is too long")


def _message(*parts: bytes) -> bytes:
    return bytes([_VERSION]) + b"".join(parts)


def _block(form: str, content: bytes) -> bytes:
    return struct.pack(">" + form, len(content)) + content


@dataclass(frozen=True)
class _Advert:
    member: Member
    share: bytes
    mask: bytes

    def check_date(self) -> None:
        if self.member.ends < datetime.datetime.now(datetime.UTC):
            raise UserError("the certificate has expired; the device needs a new one")


@lru_cache(maxsize=8192)
def _advert(content: bytes, run: str, root: bytes) -> _Advert:
    """What a node offers, if it is a node that the root has admitted and signed its keys for this run."""
    reader = _Reader(content)
    certificate, share, mask, signature = reader.block("H"), reader.take(32), reader.take(32), reader.block("B")
    reader.end()
    found = member(certificate, root)
    if not found.verify(_hash("advert", run.encode(), share, mask), signature):
        raise UserError("the one-time keys are not signed by the node for this run")
    try:
        _exchange(bytes(32), (share, mask))  # fails for points of low order, with which everybody gets 0
    except ValueError:
        raise UserError("the one-time keys are no X25519 keys") from None
    return _Advert(found, share, mask)


def _session(identifier: bytes, nodes: int, width: int, length: int, tree: bytes) -> bytes:
    """What binds all messages: a hash over everything that the nodes of a session must agree on."""
    return _hash("session", identifier, struct.pack(">IBI", nodes, width, length), tree)


def _tag(session: bytes, owner: int, holder: int, kind: str, share: bytes) -> bytes:
    """By which the server can tell later whether a holder gives the share that it got."""
    return _hash("share of " + kind, session, struct.pack(">II", owner, holder), share)[:_TAG]


def _view(session: bytes, shared: bytes, context: bytes) -> bytes:
    """What masks are bound to: nodes with another view of who takes part or what was ordered have other masks."""
    return _hash("view", session, shared, context)


@dataclass
class Party:
    """A node's part in one session. Each step works once; a step that is refused ends the session for this node."""

    identity: Identity
    run: str
    keys: bytes
    """Its two one-time private keys."""
    advert: bytes
    step: str = "share"
    root: bytes = b""
    smallest: int = 0
    session: bytes = b""
    tree: bytes = b""
    nodes: int = 0
    position: int = 0
    width: int = 0
    length: int = 0
    pairs: bytes = b""
    """Secrets it has in common with each neighbour: 32 bytes to seal shares with, 32 to mask with."""
    seed: bytes = b""
    """Of its self-mask."""
    own: bytes = b""
    """Its own share of that seed."""
    held: bytes = b""
    """The shares it holds of those neighbours that shared, two each."""
    shared: bytes = b""
    view: bytes = b""
    agreed: bytes = b""

    @staticmethod
    def begin(identity: Identity, run: str) -> Party:
        """With new one-time keys. `run` must name run and round: adverts for another one are refused, so that keys
        cannot be used twice."""
        keys = secrets.token_bytes(64)
        share, mask = _public(keys[:32]), _public(keys[32:])
        signature = identity.sign(_hash("advert", run.encode(), share, mask))
        advert = _message(_block("H", identity.certificate), share, mask, _block("B", signature))
        return Party(identity, run, keys, advert)

    def share(self, roster: bytes, root: bytes, smallest: int) -> bytes:
        """Shares of its secrets for its neighbours, if all are admitted nodes, and `smallest` with itself or more."""
        self._enter("share")
        reader = _Reader(roster)
        identifier, self.nodes, self.position, self.width, self.length, self.tree = reader.unpack("16sIIBI32s")
        if not 2 <= self.nodes <= _MOST_NODES or self.position >= self.nodes or self.width not in (32, 64):
            raise UserError("the server's list of nodes is malformed")
        degree, threshold = rule(self.nodes)
        if degree + 1 < smallest:
            raise UserError(f"{degree + 1} nodes are too few to hide in; this device asks for {smallest}")
        self.session = _session(identifier, self.nodes, self.width, self.length, self.tree)
        contents = {other: reader.block("H") for other in self._neighbours()} | {self.position: self.advert}
        self._check_tree(contents, self.tree, reader)
        reader.end()
        adverts = self._adverts(contents, root)
        self.root, self.smallest, self.seed, self.step = root, smallest, secrets.token_bytes(32), "mask"
        sealing = _exchange(self.keys[:32], (adverts[other].share for other in self._neighbours()))
        masking = _exchange(self.keys[32:], (adverts[other].mask for other in self._neighbours()))
        self.pairs = b"".join(one + two for one, two in zip(sealing, masking, strict=True))
        of_key = _split(self.keys[32:], threshold, sorted(contents))
        of_seed = _split(self.seed, threshold, sorted(contents))
        self.own = of_seed[self.position]
        others = enumerate(self._neighbours())
        entries = (self._entry(at, other, of_key[other] + of_seed[other]) for at, other in others)
        own = _tag(self.session, self.position, self.position, "seed", self.own)
        return _message(_hash("seed", self.session, self.seed), own, *entries)

    def mask(self, values: NDArray[np.int64], delivered: bytes, context: bytes) -> bytes:
        """The masked values. `context` says what the server ordered: masks only cancel between nodes with the same."""
        self._enter("mask")
        reader = _Reader(delivered)
        shared = reader.bitmap(self.nodes)
        self._check_set(shared)
        if values.shape != (self.length,):
            raise UserError(f"the server asks for {self.length} values; this device has {values.size}")
        if values.max(initial=0) >> (self.width - 1) or values.min(initial=0) >> (self.width - 1) < -1:
            raise UserError(f"a value does not fit into the {self.width} bits of this session")
        others = [(at, other) for at, other in enumerate(self._neighbours()) if shared[other]]
        held = [self._open(at, other, reader.take(_ENTRY)) for at, other in others]
        reader.end()
        threshold = rule(self.nodes)[1]
        if sum(share is not None for share in held) + 1 < max(threshold, self.smallest):
            raise UserError("too few neighbours have shared their secrets with this device")
        self.held = b"".join(share or 2 * _NONE for share in held)
        self.shared, hashed = _pack(shared), hashlib.sha256(context).digest()
        self.view, self.step = _view(self.session, self.shared, hashed), "agree" if self._sparse else "unmask"
        masked = values.astype(f"<u{self.width // 8}")
        masked += _stream(_derive(self.seed, self.view, b"self"), self.length, self.width)
        for at, other in others:
            key = _derive(self.pairs[64 * at + 32 : 64 * at + 64], self.view, b"pair")
            add = np.add if self.position < other else np.subtract
            add(masked, _stream(key, self.length, self.width), out=masked)
        return _message(hashed, masked.tobytes())

    def agree(self, arrived: bytes) -> bytes:
        """Signs which nodes' inputs have arrived; it signs one such set only."""
        self._enter("agree")
        reader = _Reader(arrived)
        members = reader.bitmap(self.nodes)
        reader.end()
        self._check_set(members)
        self.agreed, self.step = _hash("agree", self.view, _pack(members)), "unmask"
        return _message(_block("B", self.identity.sign(self.agreed)))

    def unmask(self, arrived: bytes) -> bytes:
        """For each neighbour one share: of its self-mask if its input has arrived, of its mask key if it has not."""
        self._enter("unmask")
        reader = _Reader(arrived)
        members = reader.bitmap(self.nodes)
        self._check_set(members)
        if self._sparse:
            self._check_agreed(members, reader)
        reader.end()
        shared = np.unpackbits(np.frombuffer(self.shared, np.uint8))
        shares = {self.position: self.own}
        for at, other in enumerate(other for other in self._neighbours() if shared[other]):
            start = (2 * at + bool(members[other])) * _SHARE
            shares[other] = self.held[start : start + _SHARE]
        answer = _message(*(shares[place] for place in sorted(shares)))
        return answer if self._sparse else self._lock(members, answer)

    def _lock(self, members: NDArray[np.bool_], answer: bytes) -> bytes:
        """An answer that opens only together with those of other nodes, as many as the threshold, that were told the
        same set: its lock is shared among them, sealed with keys that they give away with answers for this set only."""
        told, lock = _hash("agree", self.view, _pack(members)), secrets.token_bytes(32)
        parts = _split(lock, rule(self.nodes)[1], np.flatnonzero(members).tolist())
        entries = b""
        for at, other in enumerate(self._neighbours()):
            if members[other]:
                mine, theirs = (self.position, other), (other, self.position)
                entries += _seal(self._key(at, told, b"lock", *mine), parts[other]) + self._key(
                    at, told, b"lock", *theirs
                )
        return _message(parts[self.position], entries, _seal(lock, answer))

    @property
    def _sparse(self) -> bool:
        return self.nodes > _COMPLETE

    def _enter(self, step: str) -> None:
        if self.step != step:
            raise UserError(f"this device is not asked to {step} now; start a new session")
        self.step = "over"

    def _neighbours(self) -> list[int]:
        return _neighbours(self.session, self.nodes, self.position)

    def _adverts(self, contents: Mapping[int, bytes], root: bytes) -> dict[int, _Advert]:
        """Adverts by position: of admitted nodes, all different, in the order of their public keys."""
        found = {place: _advert(contents[place], self.run, root) for place in sorted(contents)}
        for advert in found.values():
            advert.check_date()
        publics = [advert.member.public for advert in found.values()]
        keys = {key for advert in found.values() for key in (advert.share, advert.mask)}
        if publics != sorted(set(publics)) or len(keys) < 2 * len(found):
            raise UserError("the server counts a node twice; this device does not take part")
        return found

    def _check_tree(self, leaves: Mapping[int, bytes], tree: bytes, reader: _Reader) -> None:
        if _fold(leaves, self.nodes, lambda: reader.take(32)) != tree:
            raise UserError("the server's hashes do not fit what it has sent")

    def _check_set(self, members: NDArray[np.bool_]) -> None:
        """That a set that the server names has this node, enough of its neighbours, two thirds of all nodes, and only
        nodes that have shared their secrets."""
        before = np.unpackbits(np.frombuffer(self.shared, np.uint8))[: self.nodes].astype(np.bool_)
        if before.size and (members > before).any():
            raise UserError("the server names nodes that did not share their secrets")
        if not members[self.position]:
            raise UserError("the server leaves this device out, although it has taken part")
        near, least = members[[*self._neighbours(), self.position]].sum(), max(self.smallest, rule(self.nodes)[1])
        if near < least or members.sum() < _most(self.nodes):
            raise UserError(f"{near} nodes are too few to hide in; this device asks for {least}")

    def _check_agreed(self, members: NDArray[np.bool_], reader: _Reader) -> None:
        """That two thirds of all nodes have signed this set, of which a sample is looked at."""
        signers, tree = reader.bitmap(self.nodes), reader.take(32)
        if _hash("agree", self.view, _pack(members)) != self.agreed:
            raise UserError("this device has agreed to another set of nodes")
        if signers.sum() < _most(self.nodes):
            raise UserError("too few nodes have agreed to the set of nodes")
        adverts, signatures = {}, {}
        for place in _sample(self.session, signers, tree):
            adverts[place], signatures[place] = reader.block("H"), reader.block("B")
        self._check_tree(adverts, self.tree, reader)
        self._check_tree(signatures, tree, reader)
        for place, advert in self._adverts(adverts, self.root).items():
            if not advert.member.verify(self.agreed, signatures[place]):
                raise UserError("a node has not agreed to the set of nodes, although the server says so")

    def _key(self, at: int, salt: bytes, label: bytes, owner: int, holder: int) -> bytes:
        """Of what goes from the one to the other; it is used for one message."""
        return _derive(self.pairs[64 * at : 64 * at + 32], salt, label + struct.pack(">II", owner, holder))

    def _tags(self, owner: int, holder: int, shares: bytes) -> bytes:
        parts = ("key", shares[:_SHARE]), ("seed", shares[_SHARE:])
        return b"".join(_tag(self.session, owner, holder, kind, share) for kind, share in parts)

    def _entry(self, at: int, other: int, shares: bytes) -> bytes:
        key = self._key(at, self.session, b"share", self.position, other)
        return self._tags(self.position, other, shares) + _seal(key, shares)

    def _open(self, at: int, other: int, entry: bytes) -> bytes | None:
        """A neighbour's two shares; None where it has sent something else, for which this node does not answer."""
        shares = _unseal(self._key(at, self.session, b"share", other, self.position), entry[2 * _TAG :])
        return shares if shares and self._tags(other, self.position, shares) == entry[: 2 * _TAG] else None


class Collector:
    """The server's part in one session. Nodes that send something malformed are named in `refused` and have dropped."""

    def __init__(
        self, session: bytes, adverts: Mapping[int, bytes], bits: int, length: int, run: str, root: bytes
    ) -> None:
        """`session` has 16 bytes; `run` names run and round."""
        assert len(session) == 16
        self.refused: dict[int, str] = {}
        found: dict[bytes, tuple[int, _Advert]] = {}
        keys: set[bytes] = set()
        for node, content in adverts.items():
            try:
                advert = _advert(content, run, root)
                advert.check_date()
            except UserError as error:
                self.refused[node] = str(error)
                continue
            if advert.member.public in found or keys & {advert.share, advert.mask} or advert.share == advert.mask:
                self.refused[node] = "the node or its one-time keys are there already"
                continue
            found[advert.member.public] = node, advert
            keys |= {advert.share, advert.mask}
        self.order = [found[public][0] for public in sorted(found)]
        self.adverts = [found[public][1] for public in sorted(found)]
        self.places = {node: place for place, node in enumerate(self.order)}
        self.width, self.length, self.identifier = bits, length, session
        self.tree = _Tree([adverts[node] for node in self.order] or [b""])
        self.session = _session(session, len(self.order), bits, length, self.tree.root)
        self.shared = self.arrived = self.signed = np.zeros(len(self.order), np.bool_)
        self.dealt: dict[int, tuple[bytes, dict[int, bytes]]] = {}
        self.view = b""
        self.total: NDArray[Any] = np.zeros(length, f"<u{bits // 8}")

    @property
    def sparse(self) -> bool:
        """Whether nodes must agree to a set before they unmask it."""
        return len(self.order) > _COMPLETE

    def rosters(self) -> dict[int, bytes]:
        """What each node is told about its neighbours; empty where there are fewer than two nodes."""
        if len(self.order) < 2:
            return {}
        return {node: self._roster(place) for place, node in enumerate(self.order)}

    def _roster(self, place: int) -> bytes:
        head = struct.pack(">16sIIBI", self.identifier, len(self.order), place, self.width, self.length)
        others = self._neighbours(place)
        blocks = [_block("H", self.tree.leaves[other]) for other in others]
        return _message(head, self.tree.root, *blocks, self.tree.proof([*others, place]))

    def shares(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """What to deliver to each node that has shared; empty where too few have."""

        def take(place: int, reader: _Reader) -> tuple[bytes, dict[int, bytes]]:
            seed, own = reader.take(32), {place: bytes(_TAG) + reader.take(_TAG)}
            return seed, own | {other: reader.take(_ENTRY) for other in self._neighbours(place)}

        self.dealt = self._read(replies, np.ones(len(self.order), np.bool_), take)
        self.shared = self._set(self.dealt)
        if not self._enough(self.shared):
            return {}
        return {self.order[place]: self._delivery(place) for place in self.dealt}

    def _delivery(self, place: int) -> bytes:
        others = (other for other in self._neighbours(place) if self.shared[other])
        return _message(_pack(self.shared), *(self.dealt[other][1][place] for other in others))

    def inputs(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """What to send to each node whose input has arrived, for `agree` in a sparse graph or else for `unmask`."""

        def take(place: int, reader: _Reader) -> tuple[bytes, bytes]:
            return reader.take(32), reader.take(self.total.nbytes)

        found = self._read(replies, self.shared, take)
        contexts = Counter(context for context, _ in found.values())
        common = contexts.most_common(1)[0][0] if contexts else b""
        for place, (context, content) in list(found.items()):
            if context == common:
                self.total += np.frombuffer(content, self.total.dtype)
            else:
                self.refused[self.order[place]] = "it was ordered something else than most nodes"
                del found[place]
        self.arrived, self.view = self._set(found), _view(self.session, _pack(self.shared), common)
        if not self._enough(self.arrived):
            return {}
        return dict.fromkeys(self._nodes(self.arrived), _message(_pack(self.arrived)))

    def agreed(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """What to send to each node that has agreed, for `unmask`."""
        agreed = _hash("agree", self.view, _pack(self.arrived))

        def take(place: int, reader: _Reader) -> bytes:
            signature = reader.block("B")
            if not self.adverts[place].member.verify(agreed, signature):
                raise UserError("it did not sign the set of nodes")
            return signature

        signatures = self._read(replies, self.arrived, take)
        self.signed = self._set(signatures)
        if not self._enough(self.signed):
            return {}
        tree = _Tree([signatures.get(place, b"") for place in range(len(self.order))])
        chosen = _sample(self.session, self.signed, tree.root)
        blocks = (_block("H", self.tree.leaves[at]) + _block("B", signatures[at]) for at in chosen)
        head = _message(_pack(self.arrived), _pack(self.signed), tree.root)
        evidence = b"".join([head, *blocks, self.tree.proof(chosen), tree.proof(chosen)])
        return dict.fromkeys(self._nodes(self.signed), evidence)

    def unmasked(self, replies: Mapping[int, bytes]) -> tuple[NDArray[np.int64], list[int]] | None:
        """The sum and the nodes that are in it; None where too few nodes are left, or where a node (in `refused`) has
        shared something else than its secrets: the session must be repeated without it."""

        def take(place: int, reader: _Reader) -> dict[int, bytes]:
            owners = sorted([*self._neighbours(place), place])
            return {owner: reader.take(_SHARE) for owner in owners if self.shared[owner]}

        answers = replies if self.sparse else self._unlocked(replies)
        replied = self._read(answers, self.signed if self.sparse else self.arrived, take)
        if not self._enough(self.arrived):
            return None
        given: dict[int, dict[int, bytes]] = {owner: {} for owner in self.dealt}
        for holder, shares in replied.items():
            for owner, share in shares.items():
                given[owner][holder] = share if self._true(owner, holder, share) else b""
        secret = {owner: self._secret(owner, given[owner]) for owner in given}
        if None in secret.values():
            return None
        for owner, value in secret.items():
            assert value is not None
            self._remove(owner, value)
        return self.total.view(f"<i{self.width // 8}").astype(np.int64), self._nodes(self.arrived)

    def _unlocked(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers of a complete graph, each opened with what the others say."""

        def take(place: int, reader: _Reader) -> tuple[bytes, dict[int, tuple[bytes, bytes]], bytes]:
            others = [other for other in self._neighbours(place) if self.arrived[other]]
            own = reader.take(_SHARE)
            entries = {other: (reader.take(_SHARE + 16), reader.take(32)) for other in others}
            return own, entries, reader.take(1 + _SHARE * len(self.dealt) + 16)

        found, opened = self._read(replies, self.arrived, take), {}
        threshold = rule(len(self.order))[1]
        for owner, (own, entries, sealed) in found.items():
            parts = {owner: own}
            for holder in entries.keys() & found.keys():
                part = _unseal(found[holder][1][owner][1], entries[holder][0])
                if part is not None:
                    parts[holder] = part
            lock = _join(parts, threshold, partial(_opens, sealed))
            if lock is not None:
                opened[self.order[owner]] = _unseal(lock, sealed) or b""
            elif len(parts) >= threshold or 2 * len(parts) < len(found):  # others that lie are fewer
                self.refused[self.order[owner]] = "its answer cannot be opened"
        return opened

    def _true(self, owner: int, holder: int, share: bytes) -> bool:
        """Whether this is the share that the owner gave; a holder that gives another one is named."""
        if share == _NONE:
            return False
        kind, at = ("seed", _TAG) if self.arrived[owner] else ("key", 0)
        true = self.dealt[owner][1][holder][at : at + _TAG] == _tag(self.session, owner, holder, kind, share)
        if not true:
            self.refused[self.order[holder]] = "it gave a wrong share"
        return true

    def _secret(self, owner: int, shares: Mapping[int, bytes]) -> bytes | None:
        def fits(secret: bytes) -> bool:
            if self.arrived[owner]:
                return _hash("seed", self.session, secret) == self.dealt[owner][0]
            return _public(secret) == self.adverts[owner].mask

        threshold = rule(len(self.order))[1]
        found = _join({holder: share for holder, share in shares.items() if share}, threshold, fits)
        if found is None and len(shares) >= threshold:  # enough holders have answered
            self.refused[self.order[owner]] = "it shared something else than its secrets"
        return found

    def _remove(self, owner: int, secret: bytes) -> None:
        """Takes a node's self-mask off the sum, or what its neighbours have masked with a node that dropped."""
        if self.arrived[owner]:
            self.total -= _stream(_derive(secret, self.view, b"self"), self.length, self.width)
            return
        others = [other for other in self._neighbours(owner) if self.arrived[other]]
        pairs = _exchange(secret, (self.adverts[other].mask for other in others))
        for other, pair in zip(others, pairs, strict=True):
            undo = np.subtract if other < owner else np.add
            undo(self.total, _stream(_derive(pair, self.view, b"pair"), self.length, self.width), out=self.total)

    def _read(
        self, replies: Mapping[int, bytes], asked: NDArray[np.bool_], take: Callable[[int, _Reader], T]
    ) -> dict[int, T]:
        """What replies say, by position; of those that were asked and are well-formed."""
        found = {}
        for node, content in replies.items():
            place = self.places.get(node)
            try:
                if place is None or not asked[place]:
                    raise UserError("it was not asked")
                reader = _Reader(content)
                taken = take(place, reader)
                reader.end()
                found[place] = taken
            except UserError as error:
                self.refused[node] = str(error)
        return found

    def _neighbours(self, place: int) -> list[int]:
        return _neighbours(self.session, len(self.order), place)

    def _nodes(self, members: NDArray[np.bool_]) -> list[int]:
        return [self.order[place] for place in np.flatnonzero(members)]

    def _set(self, places: Iterable[int]) -> NDArray[np.bool_]:
        members = np.zeros(len(self.order), np.bool_)
        members[list(places)] = True
        return members

    def _enough(self, members: NDArray[np.bool_]) -> bool:
        return bool(members.sum() >= max(2, _most(len(self.order))))
