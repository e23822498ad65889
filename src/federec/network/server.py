"""A federation's server: plays rounds with the nodes that a network reaches.

To the run loop it is one more trainer. A round is asked of nodes that are there, has a deadline, and counts when enough
of them have answered. Otherwise it is played again, which the nodes that did answer can do, too. A node may be one
user's device or a hub of many.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from federec.aggregators.base import Aggregator
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.errors import UserError
from federec.evaluation.metrics import Metrics, rank_metrics
from federec.evaluation.protocols import protocol
from federec.federation.device import Learned
from federec.federation.round import select
from federec.federation.server import settle
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.events import Events
from federec.network.exchange import Exchange
from federec.network.guard import Expected, Rejection, check
from federec.network.messages import Kind, Order, Reply
from federec.network.parameters import Payload
from federec.network.settings import CATALOGUE, EVENTS, FederationSettings, check_method
from federec.network.transport import Transport
from federec.reporting.report import html_report
from federec.runs.best import Best
from federec.runs.config import RunConfig
from federec.runs.folder import Line, RunFolder
from federec.runs.loop import EngineChoice, Played, Review, outcome, play_rounds
from federec.stages.secure_sum import SecureSum

TRIES = 3
"""How often a round is played before the server gives up."""
_ALL = torch.zeros(0, dtype=torch.int64)
_ENGINE = EngineChoice("torch", "the devices of a federation learn in torch")


def serve(transport: Transport, path: Path) -> None:
    """Serve the federation of a folder, from where it stands to its result. What the server does is in its events."""
    events = Events(path / EVENTS)
    try:
        _serve(transport, path, events)
    except BaseException as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        events.say("failed", error=f"{kind}{error}")
        raise


def _serve(transport: Transport, path: Path, events: Events) -> None:
    folder, settings = RunFolder(path), FederationSettings.read(path)
    with (path / EVENTS).open("a") as lock:  # the one file that is never replaced by another
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, or the process ends
        except BlockingIOError:
            raise UserError(f"{path}: another server is at work on it") from None
        config, point = folder.config(), folder.checkpoint()
        history = folder.lines(point.round if point else 0)
        folder.sweep(history, point)
        server = Server(transport, path, config, settings, events)
        if point is not None:
            server.state, server.best = point.state, point.best
        port = None if settings.metrics_port is None else events.serve(settings.metrics_host, settings.metrics_port)
        begun = {"run": settings.run, "round": len(history) + 1, "rounds": config.rounds}
        events.say("start", pid=os.getpid(), **begun, metrics=port)

        def on_round(line: Line, rounds: int) -> None:
            seconds = sum(line["seconds"].values())
            events.add("federec_rounds_total")
            events.set("federec_round_seconds", seconds)
            for name, value in line["valid"].items():
                events.set("federec_metric", value, metric=name)
            shown = {"loss": line["loss"], "hr@10": line["valid"]["hr@10"], "seconds": round(seconds, 3)}
            events.say("round", round=line["round"], rounds=rounds, **shown)

        point = play_rounds(config, settings.run, server, folder, point, history, on_round)
        assert point.best_state is not None  # a server has nothing private, and so nothing large
        began = time.perf_counter()
        review = server.review(point.best_state, point.best.round)
        result = outcome(
            config, server.method, server.data, _ENGINE, point, history, review, time.perf_counter() - began
        )
        folder.write_result(result, review.ranks, html_report(result, history))
        events.say("finished", rounds=len(history))


@dataclass(frozen=True)
class Node:
    """What the server knows of a node."""

    users: int
    """Users that it hosts."""
    catalogue: str
    """Version of its catalogue."""
    wanted: Tensor
    """Codes of the rows that it needs next; empty means all."""


class Server:
    """Trains on nodes that are reached through a transport."""

    def __init__(
        self, transport: Transport, path: Path, config: RunConfig, settings: FederationSettings, events: Events
    ) -> None:
        self.exchange = Exchange(transport, path, settings, events)
        self.transport, self.path, self.config, self.settings, self.events = transport, path, config, settings, events
        self.method, self.link = check_method(config, settings)
        if "secure-sum" in self.link.channel and transport.secure_sum is None:
            raise UserError(
                f"{path}: 'secure-sum' needs a network with secure aggregation, such as Flower; this has none"
            )
        self.catalogue = Catalogue.read(path / CATALOGUE)
        self.state = State.start(self.method, settings.sizes[0], 0, config.seed)
        self.best = Best()
        self.choose = protocol(config.protocol).choose
        self.nodes: dict[int, Node] = {}
        self.data: dict[str, str | int] = {}
        """What nodes told of their data, for the result."""

    # A round

    def play(self, round_: int) -> Played:
        began, before = time.perf_counter(), dict(self.exchange.bytes)
        self.events.set("federec_round", round_)
        self.grow()
        replies, nodes, asked = self.train(round_)
        users = sum(reply.devices for reply in replies)
        start = self.state.copy() if self.method.view == "own" else None
        aggregator = self.link.aggregator(len(self.catalogue))
        learned = take_in(replies, aggregator)
        report = settle(self.method, self.state, aggregator, self.link.channel, learned)
        now = time.perf_counter()
        if start is None:
            orders = {node: self.order("evaluate", round_, self.nodes[node], round_) for node in asked}
            replies, _ = self.ask(orders)
        valid, test = ({"sampled": mean_metrics(replies, f"{part} sampled")} for part in ("valid", "test"))
        value, after = valid["sampled"][self.choose], round_ if start is None else round_ - 1
        self.best = self.best.considered(round_, value, after)  # as the run loop does, for what nodes must keep
        seconds = {"train": now - began, "evaluate": time.perf_counter() - now}
        up, down = ((self.exchange.bytes[way] - before[way]) / nodes for way in ("up", "down"))
        return Played(start or self.state, valid, test, report.loss, up, down, seconds, report.notes, users / nodes)

    def train(self, round_: int) -> tuple[list[Reply], int, list[int]]:
        """The updates of enough nodes, of how many, and which nodes were asked for them."""
        for again in range(TRIES):
            chosen = self.chosen(self.gather(round_, everyone=again > 0), round_)
            orders = {node: self.order("train", round_, self.nodes[node], self.best.after) for node in chosen}
            replies, answered = self.ask(orders)
            self.events.add("federec_updates_total", answered)
            if answered >= self.settings.minimum:
                return replies, answered, chosen
            self.events.say("again", round=round_, answered=answered, minimum=self.settings.minimum)
        least = self.settings.minimum
        raise UserError(
            f"round {round_}: fewer than {least} devices answered, {TRIES} times; continue when they are there"
        )

    def review(self, model: State, round_: int) -> Review:
        """The best round: all nodes that are there rank against all items."""
        shared = self.shared(model.shared, _ALL)
        nodes = self.gather(round_, everyone=True)
        orders = {
            node: self.order("evaluate", round_, self.nodes[node], self.best.after, True, shared) for node in nodes
        }
        replies, _ = self.ask(orders)
        told = [reply.sums.get("interactions", (0.0, 0)) for reply in replies]
        self.data = {
            "name": Path(self.config.data).name,
            "users": sum(count for _, count in told),
            "items": len(self.catalogue),
            "interactions": round(sum(total for total, _ in told)),
            "evaluated_users": sum(reply.sums.get("test full hr@10", (0.0, 0))[1] for reply in replies),
            "merged_duplicates": 0,
            "sha256": self.settings.run,
        }
        valid, test = (
            {kind: mean_metrics(replies, f"{part} {kind}") for kind in ("sampled", "full")}
            for part in ("valid", "test")
        )
        return Review(valid, test, {}, {})

    def grow(self) -> None:
        """Take in items that were added to the catalogue. The steps in which it grew are written down first, so that a
        server that continues from here, and every node, grows in the same steps."""
        newer = Catalogue.read(self.path / CATALOGUE)
        if newer.extends(self.catalogue):
            self.catalogue = newer
        if len(self.catalogue) != self.settings.sizes[-1]:
            self.settings = self.settings.model_copy(update={"sizes": (*self.settings.sizes, len(self.catalogue))})
            self.settings.write(self.path)
            self.events.say("catalogue", items=len(self.catalogue), version=self.catalogue.version)
        tables = [name for name, param in self.method.shared().items() if param.rows]
        for n_items in self.settings.sizes:
            if tables and n_items > len(self.state.shared[tables[0]]):
                self.state = self.state.grown(self.method, n_items, self.config.seed)

    # Who takes part

    def gather(self, round_: int, everyone: bool = False) -> list[int]:
        """Nodes that are there and have said what they need: at least `minimum`; in the beginning, `expected`, unless
        this takes too long."""
        settings, began, first, said = self.settings, time.monotonic(), not self.nodes, False
        while True:
            there = set(self.transport.nodes())
            self.nodes = {node: known for node, known in self.nodes.items() if node in there}
            self.exchange.forget(there)
            awake = {node for node in there if everyone or not self.exchange.rests(node, round_)}
            if new := sorted(awake - self.nodes.keys()):
                self.exchange.ask(dict.fromkeys(new, self.order("query", round_)), self.stranger)
            self.events.set("federec_devices", len(self.nodes))
            able = {node for node, known in self.nodes.items() if known.users}  # who has nothing yet cannot learn
            ready = sorted(able & awake if len(able & awake) >= settings.minimum else able)
            waited = time.monotonic() - began
            wanted = max(settings.minimum, settings.expected if first and waited < settings.deadline else 1)
            if len(ready) >= wanted:
                return ready
            everyone = everyone or len(ready) < settings.minimum  # then ask every node, also those that are skipped
            if not said:
                self.events.say("waiting", round=round_, devices=len(ready), wanted=wanted)
                said = True
            if waited > settings.patience:
                have = f"{len(ready)} devices after {settings.patience:g} s"
                raise UserError(f"round {round_}: {have}, {wanted} are needed; continue when they are there")
            time.sleep(self.exchange.poll)

    def chosen(self, nodes: list[int], round_: int) -> list[int]:
        """Those that a round asks."""
        fraction = self.config.participation or 1.0
        if self.settings.target is not None:
            fraction = min(1.0, self.settings.target / len(nodes))
        return [nodes[index] for index in select(len(nodes), fraction, self.config.seed, round_).tolist()]

    # What travels

    def ask(self, orders: Mapping[int, Order]) -> tuple[list[Reply], int]:
        """Replies, and of how many nodes; under secure aggregation one reply, the sum of the nodes' own."""
        if "secure-sum" not in self.link.channel or not orders:
            replies = self.exchange.ask(orders, self.fault)
            return list(replies.values()), len(replies)
        assert self.transport.secure_sum is not None
        users = {node: known.users for node, known in self.nodes.items()}
        most = next(stage.most for stage in self.link.channel.stages if isinstance(stage, SecureSum))
        items = len(self.catalogue)
        total, answered = self.transport.secure_sum(self.exchange, orders, users, self.method, items, most)
        return [] if total is None else [total], answered

    def order(
        self,
        kind: Kind,
        round_: int,
        node: Node | None = None,
        keep: int = 0,
        full: bool = False,
        shared: Payload | None = None,
    ) -> Order:
        """What a node is told; without a node, what a new one is asked."""
        labels: list[str] = []
        if node is not None:
            labels = list(self.catalogue.labels[known_items(node.catalogue) :])
            shared = shared or self.shared(self.state.shared, node.wanted)
        config, sizes = self.config.model_dump(mode="json"), list(self.settings.sizes)
        return Order(kind, self.settings.run, round_, config, sizes, labels, keep, full, shared or Payload.nothing())

    def shared(self, shared: Params, wanted: Tensor) -> Payload:
        """Rows of the wanted items, and all layers. Where a method makes something else of its tables on the way to a
        device, nodes get whole tables."""
        tables = {name: shared[name] for name, param in self.method.shared().items() if param.rows}
        layers = {name: value for name, value in shared.items() if name not in tables}
        if not len(wanted) or type(self.method).fetch is not DeviceMethod.fetch:
            wanted = torch.arange(max(map(len, tables.values()), default=0))
        return Payload(wanted, {name: table[wanted] for name, table in tables.items()}, layers)

    def stranger(self, node: int, order: Order, reply: Reply, replies: Mapping[int, Reply]) -> Rejection | None:
        """What is wrong with the first reply of a node."""
        known = self.catalogue.labels[: known_items(reply.catalogue)]
        if Catalogue(known).version != reply.catalogue:
            return Rejection("catalogue", f"it has {reply.catalogue}, which this server never had"[:200])
        return self.welcome(node, reply)

    def fault(self, node: int, order: Order, reply: Reply, replies: Mapping[int, Reply]) -> Rejection | None:
        """What is wrong with a node's reply to an order."""
        metadata = {name: getattr(reply, name) for name in ("run", "round", "catalogue", "devices", "sums")}
        tensors = reply.update.tensors()
        expected = self.expected(order, tensors)
        return check(node, metadata, tensors, expected, replies) or self.welcome(node, reply)

    def welcome(self, node: int, reply: Reply) -> Rejection | None:
        """Remember what a node needs next."""
        wanted = reply.wanted
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self.catalogue):
            return Rejection("malformed", "it asks for rows that are not there")
        self.nodes[node] = Node(reply.devices, reply.catalogue, wanted)
        return None

    def rows_expected(self, order: Order) -> Tensor | None:
        """The rows that an update must have, where that does not depend on what its users did; None: any."""
        rows, channel = self.link.channel.format.rows, self.link.channel
        if rows == "changed" or "top-rows" in channel:
            return None
        return order.shared.ids if rows == "named" else torch.arange(len(self.catalogue))

    def expected(self, order: Order, tensors: Params) -> Expected:
        """What an update must look like."""
        items = len(self.catalogue)
        sends = {} if order.kind == "evaluate" else self.method.sends()
        if self.method.closed_form:  # may have nothing to say of some things in some rounds
            sends = {name: p for name, p in sends.items() if {f"rows:{name}", f"layers:{name}"} & tensors.keys()}
        return Expected(
            self.settings.run,
            order.round,
            self.catalogue.version,
            items,
            {name: param.sized(items) for name, param in sends.items() if param.rows},
            {name: param.sized(items) for name, param in sends.items() if not param.rows},
            self.rows_expected(order),
            self.settings.most_users if self.link.aggregator.linear else 1,
            self.settings.most_norm,
        )


def take_in(replies: Iterable[Reply], aggregator: Aggregator) -> Learned:
    """The aggregator takes in what nodes sent; returns what they told besides."""
    figures = Params()
    for reply in replies:
        sent = reply.update
        layers = {name: value[None] for name, value in sent.layers.items()}
        update = Update(aggregator.n_items, sent.ids, torch.tensor([len(sent.ids)]), sent.rows, layers)
        aggregator.add(update, devices=reply.devices)
        for name, pair in reply.sums.items():
            if not name.startswith(("valid ", "test ")):
                figures[name] = figures.get(name, torch.zeros(2, dtype=torch.float64)) + torch.tensor(pair)
    return Learned(figures=figures)


def mean_metrics(replies: Iterable[Reply], kind: str) -> Metrics:
    """Means over all users that were ranked; 0 where none was."""
    totals = dict.fromkeys(rank_metrics(torch.zeros(1)), (0.0, 0))
    for reply in replies:
        for name, (total, count) in totals.items():
            more, users = reply.sums.get(f"{kind} {name}", (0.0, 0))
            totals[name] = total + more, count + users
    return {name: total / max(1, count) for name, (total, count) in totals.items()}


def known_items(version: str) -> int:
    """How many items a version of a catalogue has."""
    number = version.partition("-")[0]
    return int(number) if number.isdecimal() else 0
