"""Servers that do more than they should: one that remembers everything, one that gives its own orders."""

import hashlib
import secrets
from dataclasses import replace

import numpy as np

from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.device_folder import FILE, DeviceFolder, share_out, shares
from federec.network.keys import Key
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.network.secure_sum import Collector
from federec.network.server import own_root
from federec.network.settings import CATALOGUE, FederationSettings, prepare
from federec.network.vault import Vault
from federec.network.vector import length
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.in_process import InProcess, Node

SETTINGS = {"dim": 4, "item_lr_factor": 0.2}


def prepared(path, data, method="pfedrec", nodes=6, rounds=3, channel=None, **how):
    """The folder of a federation whose channel, policy and secure sums are the default ones, unless `channel` says
    otherwise."""
    config = RunConfig.checked(
        method=method, data="small", settings=SETTINGS, rounds=rounds, channel=channel, participation=1.0
    )
    how = {"expected": nodes, "deadline": 20.0, "patience": 20.0, "grace": 0.2} | how
    prepare(path, config, FederationSettings.checked(**how), Catalogue.of(data))
    share_out(path, data, nodes)
    return path


def nodes_of(path):
    return {number: Node(folder, Key.file(key)) for number, (folder, key) in enumerate(shares(path))}


class Curious(InProcess):
    """Keeps all that is sent and received: (node, kind, round, order, reply)."""

    def __init__(self, nodes, *faults):
        super().__init__(nodes, *faults)
        self.kept, self._asked = [], {}

    def send(self, messages, kind, round_, timeout):
        tickets = super().send(messages, kind, round_, timeout)
        self._asked |= {ticket: (node, kind, round_, messages[node]) for ticket, node in tickets.items()}
        return tickets

    def collect(self, tickets):
        found = super().collect(tickets)
        for delivery in found:
            node, kind, round_, order = self._asked[delivery.ticket]
            self.kept.append((node, kind, round_, order, delivery.content))
        return found


class Attacker:
    """Sends what it likes to the devices of a prepared folder."""

    def __init__(self, path):
        self.path, self.nodes, self.root = path, nodes_of(path), own_root(path)
        self.config, self.catalogue = RunFolder(path).config(), Catalogue.read(path / CATALOGUE)
        method = self.config.build()
        assert isinstance(method, DeviceMethod)
        self.method = method
        start = State.start(self.method, len(self.catalogue), 0, self.config.seed).shared
        tables = {name for name, param in self.method.shared().items() if param.rows}
        self.shared = Payload(
            np.arange(len(self.catalogue)),
            {name: start[name].numpy() for name in tables},
            {name: value.numpy() for name, value in start.items() if name not in tables},
        )

    def close(self):
        for node in self.nodes.values():
            node.close()

    def order(self, kind="train", round_=1, **changes):
        """An order as an honest server gives it, but for the changes."""
        shared = Payload.nothing() if kind == "query" else self.shared
        config = self.config.model_dump(mode="json")
        return replace(Order(kind, "run", round_, config, [len(self.catalogue)], shared=shared), **changes)

    def ask(self, node, order):
        """A device's reply to an order, or to bytes."""
        content = order if isinstance(order, bytes) else order.pack()
        return Reply.parse(self.nodes[node].answer(content))

    def adverts(self, order, group, name=""):
        """Keys of these devices for the sum that an order is about."""
        name = name or f"round {order.round}, {'full' if order.full else order.kind}"
        query = self.order("query", order.round, run=order.run, next=name, config=order.config)
        return name, {node: self.ask(node, query).advert for node in group}

    def collector(self, order, group, name=""):
        """The server's part in a secure sum over a group."""
        name, adverts = self.adverts(order, group, name)
        sends = self.method.sends() if order.kind == "train" else {}
        count = length(sends, len(self.catalogue))
        return Collector(secrets.token_bytes(16), adverts, 32, count, f"{order.run}, {name}", self.root)

    def leg(self, kind, order, sealed):
        """Replies to one leg, without those that failed."""
        leg = order if kind == order.kind else Order(kind, order.run, order.round, {}, order.sizes)
        replies = {node: self.ask(node, replace(leg, sealed=content)) for node, content in sealed.items()}
        return {node: reply.sealed for node, reply in replies.items() if not reply.failed}

    def sum(self, order, group, name=""):
        """The secure sum over a group and the nodes in it, None where the devices do not let it come about."""
        collector = self.collector(order, group, name)
        delivered = collector.shares(self.leg("share", order, collector.rosters()))
        arrived = collector.inputs(self.leg(order.kind, order, delivered))
        return collector.unmasked(self.leg("unmask", order, arrived))

    def masking(self, group, order=None):
        """Orders to mask, after the devices of a group have shared their secrets; and the server's part."""
        order = order or self.order()
        collector = self.collector(order, group)
        sealed = collector.shares(self.leg("share", order, collector.rosters()))
        return {node: replace(order, sealed=content) for node, content in sealed.items()}, collector

    def folder(self, node):
        path, key = shares(self.path)[node]
        return DeviceFolder.open(path, Key.file(key))

    def kept(self, node):
        """All values in a device's vault, by name."""
        path, key = shares(self.path)[node]
        vault = Vault(path / FILE, Key.file(key))
        try:
            return {name: hashlib.sha256(vault.need(name)).hexdigest() for name in vault.names("")}
        finally:
            vault.close()

    def pin(self, **changes):
        """Let all devices have another policy."""
        for node in self.nodes:
            folder = self.folder(node)
            folder.pin(folder.policy.model_copy(update=changes))
            folder.close()


def told(reply):
    """Whether anything left the device besides that it would not."""
    held = reply.update.rows, reply.update.layers, reply.update.ids.tolist(), reply.wanted.tolist()
    return any((*held, reply.sums, reply.advert, reply.sealed, reply.devices, reply.catalogue))
