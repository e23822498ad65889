"""A federation's server: plays rounds with the nodes that a network reaches.

To the run loop it is one more trainer. A round is asked of nodes that are there, has a deadline, and counts when enough
of them have answered. Otherwise it is played again, which the nodes that did answer can do, too. A node may be one
user's device or a hub of many.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from federec.aggregators.base import Aggregator
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.errors import UserError
from federec.evaluation.metrics import NAMES, Metrics
from federec.federation.device import Learned
from federec.federation.round import select
from federec.federation.server import settle
from federec.federation.state import State
from federec.files import read_bytes
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.certificates import ROOT
from federec.network.events import Events
from federec.network.exchange import Exchange
from federec.network.guard import Expected, Rejection, check
from federec.network.messages import Kind, Order, Reply
from federec.network.parameters import Array, Arrays, Payload
from federec.network.settings import CATALOGUE, EVENTS, FederationSettings, check_method, unsampled
from federec.network.summing import summed
from federec.network.suspicion import Norms, Suspects
from federec.network.transport import Transport
from federec.network.vector import length, spoiled, unflat
from federec.reporting.report import html_report
from federec.runs.best import Best
from federec.runs.budget import budget_of, described
from federec.runs.config import RunConfig
from federec.runs.folder import Line, RunFolder
from federec.runs.loop import EngineChoice, Played, Review, outcome, play_rounds, selected
from federec.stages.distributed_noise import NOISED
from federec.stages.randomness import Real
from federec.stages.registry import plain, stage
from federec.stages.secure_sum import SecureSum
from federec.tracking.registry import remembered
from federec.tracking.tracking import tracking

TRIES = 3
"""How often a round is played before the server gives up, and how many rounds in a row may be lost."""
SPOILED = 12
"""How many rounds in a row may be lost because somebody spoils the sum, who has to be found first."""
_ALL = torch.zeros(0, dtype=torch.int64)
_NO_METRICS: dict[str, Metrics] = {"sampled": {}}
_ENGINE = EngineChoice("torch", "nodes learn in torch, and in NumPy where they have no torch")


def serve(transport: Transport, path: Path, root: bytes = b"") -> None:
    """Serve the federation of a folder, from where it stands to its result. What the server does is in its events.
    `root` is the certificate of the federation's root (PEM); that of the folder if not given."""
    events = Events(path / EVENTS)
    try:
        _serve(transport, path, events, root or own_root(path))
    except BaseException as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        events.say("failed", error=f"{kind}{error}")
        raise


def _serve(transport: Transport, path: Path, events: Events, root: bytes) -> None:
    folder, settings = RunFolder(path), FederationSettings.read(path)
    with (path / EVENTS).open("a") as lock:  # the one file that is never replaced by another
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, or the process ends
        except BlockingIOError:
            raise UserError(f"{path}: another server is at work on it") from None
        config, point = folder.config(), folder.checkpoint()
        history = folder.lines(point.round if point else 0)
        folder.sweep(history, point)
        server = Server(transport, path, config, settings, events, root)
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
            shown = {"loss": line["loss"], "hr@10": line["valid"].get("hr@10"), "seconds": round(seconds, 3)}
            events.say("round", round=line["round"], rounds=rounds, **shown)

        with tracking(remembered(path), config, server.method, folder, history) as logs:
            items = len(server.catalogue)
            budget = budget_of(unsampled(config), server.method, items, folder, repeatable=False)
            point = play_rounds(
                config, settings.run, server, folder, point, history, logs.on_round(on_round), budget=budget
            )
            assert point.best_state is not None  # a server has nothing private, and so nothing large
            began = time.perf_counter()
            review = server.review(point.best_state, point.best.round)
            result = outcome(
                config,
                server.method,
                server.data,
                _ENGINE,
                point,
                history,
                review,
                time.perf_counter() - began,
                described(unsampled(config), server.method, items, budget),
            )
            report = html_report(result, history)
            folder.write_result(result, review.ranks, report)
            logs.finish(result, lambda: report)
        events.say("finished", rounds=len(history))


def own_root(path: Path) -> bytes:
    """The root certificate in a federation's folder; nothing where it has none."""
    file = path / "tls" / ROOT
    return read_bytes(file) if file.exists() else b""


@dataclass(frozen=True)
class Node:
    """What the server knows of a node."""

    users: int
    """Users that it hosts."""
    catalogue: str
    """Version of its catalogue."""
    wanted: Tensor
    """Codes of the rows that it needs next; empty means all."""
    advert: bytes = b""
    """Keys for a secure sum."""
    sum: str = ""
    """The name of that sum."""


class Lost(Exception):
    """A round that came to nothing: too few nodes were left, or what came of it cannot be used."""


class Server:
    """Trains on nodes that are reached through a transport."""

    def __init__(
        self,
        transport: Transport,
        path: Path,
        config: RunConfig,
        settings: FederationSettings,
        events: Events,
        root: bytes,
    ) -> None:
        self.exchange = Exchange(transport, path, settings, events)
        self.transport, self.path, self.config, self.settings, self.events = transport, path, config, settings, events
        self.method, self.link = check_method(config, settings)
        self.hides = "secure-sum" in self.link.channel
        if self.hides and not root:
            raise UserError(f"{path}: a secure sum needs the certificate of the federation's root; see {ROOT}")
        self.root = root
        self.minimum = settings.minimum or 1
        self.catalogue = Catalogue.read(path / CATALOGUE)
        self.state = State.start(self.method, settings.sizes[0], 0, config.seed)
        self.best = Best()
        self.nodes: dict[int, Node] = {}
        self.norms = Norms()
        self.suspects = Suspects(self.minimum)
        self.round = 0
        """That was played last."""
        self.lost, self.lowest, self.spoiled = 0, math.inf, ""
        """Rounds in a row that came to nothing; the lowest loss so far; what is wrong with the last sum."""
        self.data: dict[str, str | int] = {}
        """What nodes told of their data, for the result."""

    # A round

    def play(self, round_: int) -> Played:
        began, before = time.perf_counter(), dict(self.exchange.bytes)
        self.round = round_
        self.events.set("federec_round", round_)
        self.grow()
        start = self.state.copy()
        try:
            played, nodes = self.learned(round_, start, began)
        except Lost as lost:
            self.state, self.lost = start.copy(), self.lost + 1
            self.best = self.best.considered(round_, None, round_ - 1)
            self.events.say("lost", round=round_, reason=str(lost))
            findable = self.spoiled and len(self.nodes) > self.minimum  # by sums without it
            if self.lost >= (SPOILED if findable else TRIES):
                raise UserError(f"round {round_}: {lost}, {self.lost} rounds in a row; mend it and continue") from None
            return Played(start, _NO_METRICS, _NO_METRICS, seconds={"train": time.perf_counter() - began})
        self.lost = 0
        up, down = ((self.exchange.bytes[way] - before[way]) / nodes for way in ("up", "down"))
        return replace(played, up_bytes=up, down_bytes=down)

    def learned(self, round_: int, start: State, began: float) -> tuple[Played, int]:
        """A round with enough nodes, and how many took part."""
        replies, nodes, asked = self.train(round_)
        users = sum(reply.devices for reply in replies)
        own = self.method.view == "own"
        aggregator = self.link.begin(len(self.catalogue))
        learned = take_in(replies, aggregator)
        counted = self.settings.counted
        report = settle(self.method, self.state, aggregator, self.link, learned, Real(), least=counted)
        self.watch(round_, start, report.loss)
        now = time.perf_counter()
        if not own:
            following = sum_name("train", round_ + 1)
            orders = {
                node: self.order("evaluate", round_, self.nodes[node], round_, next_=following)
                for node in self.keyed(asked, round_, sum_name("evaluate", round_))
            }
            replies, _ = self.ask(orders)
        valid, test = ({"sampled": mean_metrics(replies, f"{part} sampled")} for part in ("valid", "test"))
        if full := mean_metrics(replies, "valid full"):
            valid["full"] = full
        value, after = selected(self.config, valid), round_ - 1 if own else round_
        self.best = self.best.considered(round_, value, after)  # as the run loop does, for what nodes must keep
        seconds = {"train": now - began, "evaluate": time.perf_counter() - now}
        model = start if own else self.state
        played = Played(model, valid, test, report.loss, None, None, seconds, report.notes, users / nodes)
        return played, nodes

    def train(self, round_: int) -> tuple[list[Reply], int, list[int]]:
        """The updates of enough nodes, of how many, and which nodes were asked for them."""
        for again in range(TRIES):
            sum_ = sum_name("train", round_)
            chosen = self.keyed(self.chosen(self.gather(round_, sum_, everyone=again > 0), round_), round_, sum_)
            following = sum_name("train", round_ + 1) if self.method.view == "own" else sum_name("evaluate", round_)
            orders = {
                node: self.order("train", round_, self.nodes[node], self.best.after, next_=following) for node in chosen
            }
            replies, answered = self.ask(orders)
            self.events.add("federec_updates_total", answered)
            if answered >= self.minimum:
                return replies, answered, chosen
            if self.hides:  # a device answers once: another sum of the same round could differ by one device
                raise Lost(self.spoiled or f"{answered} devices answered, {self.minimum} are needed")
            self.events.say("again", round=round_, answered=answered, minimum=self.minimum)
        raise UserError(
            f"round {round_}: fewer than {self.minimum} devices answered, {TRIES} times; continue when they are there"
        )

    def watch(self, round_: int, before: State, loss: float | None) -> None:
        """Raise an alarm where learning diverges; what is no number is never kept."""
        now, then = self.state.shared, before.shared
        if not all(bool(value.isfinite().all()) for value in now.values()):
            raise Lost("the new shared parameters are not numbers")
        size, was = (math.sqrt(sum(float(v.double().square().sum()) for v in each.values())) for each in (now, then))
        if size > 10 * was > 0:
            self.events.say("alarm", round=round_, reason=f"shared parameters grew from norm {was:.4g} to {size:.4g}")
        if loss is not None:
            if loss > 2 * self.lowest:
                self.events.say("alarm", round=round_, reason=f"the loss is {loss:.4g}; it was {self.lowest:.4g}")
            self.lowest = min(self.lowest, loss)

    def review(self, model: State, round_: int) -> Review:
        """The best round: all nodes that are there rank against all items. Where one could spoil the sum of all,
        those that are skipped are left out."""
        shared = self.shared(model.shared, _ALL)
        sum_ = sum_name("evaluate", round_, True)
        nodes = self.gather(max(round_, self.round), sum_, everyone=not self.hides)
        nodes = self.keyed(nodes, round_, sum_)
        orders = {
            node: self.order("evaluate", round_, self.nodes[node], self.best.after, True, shared) for node in nodes
        }
        replies, answered = self.ask(orders)
        if not answered:  # a device evaluates once, so this cannot be repeated
            self.events.say("lost", round=round_, reason="no device took part in the last evaluation")
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
        played = RunFolder(self.path).lines(round_)[-1]
        valid, test = (  # under secure sums sampled metrics are told once, in the round itself
            {
                "sampled": mean_metrics(replies, f"{part} sampled") or played[part],
                "full": mean_metrics(replies, f"{part} full") or played.get(f"{part}_full", {}),
            }
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

    def gather(self, round_: int, sum_: str, everyone: bool = False) -> list[int]:
        """Nodes that are there and have said what they need: at least `minimum`; in the beginning, `expected`, unless
        this takes too long. Those that are new are asked for keys of the secure sum, too."""
        settings, began, first, said = self.settings, time.monotonic(), not self.nodes, False
        while True:
            there = set(self.transport.nodes())
            self.nodes = {node: known for node, known in self.nodes.items() if node in there}
            self.exchange.forget(there)
            awake = {node for node in there if everyone or not self.exchange.rests(node, round_)}
            if new := sorted(awake - self.nodes.keys()):
                enough = max(0, self.minimum - len(self.nodes.keys() & awake))
                self.exchange.ask(dict.fromkeys(new, self.order("query", round_, next_=sum_)), self.stranger, enough)
            self.events.set("federec_devices", len(self.nodes))
            able = {node for node, known in self.nodes.items() if known.users}  # who has nothing yet cannot learn
            ready = sorted(able & awake if len(able & awake) >= self.minimum else able)
            waited = time.monotonic() - began
            wanted = max(self.minimum, settings.expected if first and waited < settings.deadline else 1)
            if len(ready) >= wanted:
                return ready
            everyone = everyone or len(ready) < self.minimum  # then ask every node, also those that are skipped
            if not said:
                self.events.say("waiting", round=round_, devices=len(ready), wanted=wanted)
                said = True
            if waited > settings.patience:
                have = f"{len(ready)} devices after {settings.patience:g} s"
                raise UserError(f"round {round_}: {have}, {wanted} are needed; continue when they are there")
            time.sleep(self.exchange.poll)

    def keyed(self, nodes: list[int], round_: int, sum_: str) -> list[int]:
        """Those of these nodes that have given keys for a secure sum; where replies are not to be summed, all."""
        if not self.hides:
            return nodes
        without = [node for node in nodes if self.nodes[node].sum != sum_]
        enough = max(0, self.minimum - len(nodes) + len(without))
        self.exchange.ask(dict.fromkeys(without, self.order("query", round_, next_=sum_)), self.stranger, enough)
        return [node for node in nodes if self.nodes[node].advert and self.nodes[node].sum == sum_]

    def chosen(self, nodes: list[int], round_: int) -> list[int]:
        """Those that a round asks."""
        fraction = self.config.participation or 1.0
        if self.settings.target is not None:
            fraction = min(1.0, self.settings.target / len(nodes))
        return [nodes[index] for index in select(len(nodes), fraction, self.config.seed, round_).tolist()]

    # What travels

    def ask(self, orders: Mapping[int, Order]) -> tuple[list[Reply], int]:
        """Replies, and of how many nodes; under secure aggregation those that sums of the nodes' own stand for."""
        if not self.hides or not orders:
            replies = self.exchange.ask(orders, self.fault, self.minimum)
            trained = {node: reply for node, reply in replies.items() if orders[node].kind == "train"}
            for node, why in self.norms.far(trained).items():
                self.exchange.refuse(node, replies.pop(node).round, why)
            return list(replies.values()), len(replies)
        found: list[Reply] = []
        answered = 0
        for group in self.suspects.groups(list(orders)):
            total, nodes = self.sum({node: orders[node] for node in group})
            if total is not None:
                found.append(total)
                answered += len(nodes)
        return found, answered

    def sum(self, orders: Mapping[int, Order]) -> tuple[Reply | None, list[int]]:
        """The reply that the secure sum over some nodes stands for, and the nodes in it. None where there is no sum, or
        where it cannot be one of honest replies."""
        first, items = next(iter(orders.values())), len(self.catalogue)
        adverts = {node: self.nodes[node].advert for node in orders}
        for node in orders:  # keys are used once
            self.nodes[node] = replace(self.nodes[node], sum="")
        sends = self.link.channel.sends(self.method.sends(), items) if first.kind == "train" else {}
        users = sum(self.users(node) for node in orders)
        made = summed(
            self.exchange,
            orders,
            adverts,
            self.root,
            users,
            length(sends, items),
            self.minimum,
            sum_name(first.kind, first.round, first.full),
            lambda node, reply: self.partial(node, first, reply),
        )
        if made is None:
            return None, []
        total, nodes = made
        most = next(stage.most for stage in self.link.channel.stages if isinstance(stage, SecureSum))
        reply = unflat(total, first, sends, items, most)
        noised = sends[NOISED].shape[0] if NOISED in sends else 0
        wrong = "out of range" if spoiled(total, len(nodes), sum(map(self.users, nodes)), noised) else ""
        if not wrong and not plausible(reply, len(nodes)):
            wrong = "metrics that cannot be"
        if not wrong and sends and self.norms.far({0: reply}):
            wrong = "far beyond the usual norm"
        self.suspects.saw(nodes, bool(wrong))
        self.spoiled = f"the sum is spoiled: {wrong}" if wrong else ""
        if wrong:
            self.events.say("spoiled", round=first.round, devices=[str(node) for node in nodes], reason=wrong)
            for node in self.suspects.caught():
                self.exchange.refuse(node, first.round, Rejection("norm", "each sum that it is part of is spoiled"))
            return None, []
        return reply, nodes

    def users(self, node: int) -> int:
        """Users that a node may speak for."""
        admitted = self.transport.users(node)
        return self.settings.most_users if admitted is None else min(admitted, self.settings.most_users)

    def order(
        self,
        kind: Kind,
        round_: int,
        node: Node | None = None,
        keep: int = 0,
        full: bool = False,
        shared: Payload | None = None,
        next_: str = "",
    ) -> Order:
        """What a node is told; without a node, what a new one is asked. `next_` is the name of the secure sum that will
        follow, if any."""
        labels: list[str] = []
        if node is not None:
            labels = list(self.catalogue.labels[known_items(node.catalogue) :])
            shared = shared or self.shared(self.state.shared, node.wanted)
        own = {"epsilon", "delta", "max_epsilon"}  # the server's business: a device counts for itself
        config, sizes = self.config_now().model_dump(mode="json", exclude=own), list(self.settings.sizes)
        shared, next_ = shared or Payload.nothing(), next_ if self.hides else ""
        return Order(kind, self.settings.run, round_, config, sizes, labels, keep, full, next_, shared)

    def config_now(self) -> RunConfig:
        """The configuration with the channel as it is in this round."""
        stages = tuple(stage(values) for values in self.config.channel or ())
        now = tuple(each.now(self.state.server) for each in stages)
        return self.config if now == stages else self.config.model_copy(update={"channel": tuple(map(plain, now))})

    def shared(self, shared: Params, wanted: Tensor) -> Payload:
        """Rows of the wanted items, and all layers. Where a method makes something else of its tables on the way to a
        device, nodes get whole tables."""
        tables = {name: shared[name] for name, param in self.method.shared().items() if param.rows}
        layers = {name: value for name, value in shared.items() if name not in tables}
        if not len(wanted) or type(self.method).fetch is not DeviceMethod.fetch:
            wanted = torch.arange(max(map(len, tables.values()), default=0))
        rows = {name: table[wanted].numpy() for name, table in tables.items()}
        return Payload(wanted.numpy(), rows, {name: value.numpy() for name, value in layers.items()})

    def stranger(self, node: int, order: Order, reply: Reply, replies: Mapping[int, Reply]) -> Rejection | None:
        """What is wrong with the first reply of a node."""
        known = self.catalogue.labels[: known_items(reply.catalogue)]
        if Catalogue(known).version != reply.catalogue:
            return Rejection("catalogue", f"it has {reply.catalogue}, which this server never had"[:200])
        if order.next and not reply.advert:
            return Rejection("malformed", "it gives no keys for the next secure sum")
        return self.welcome(node, order, reply)

    def partial(self, node: int, order: Order, reply: Reply) -> Rejection | None:
        """What is wrong with a node's part in a secure sum, besides that part itself."""
        if reply.devices and reply.catalogue != self.catalogue.version:
            return Rejection("catalogue", f"it has {reply.catalogue}, not {self.catalogue.version}"[:200])
        return self.welcome(node, order, reply)

    def fault(self, node: int, order: Order, reply: Reply, replies: Mapping[int, Reply]) -> Rejection | None:
        """What is wrong with a node's reply to an order."""
        metadata = {name: getattr(reply, name) for name in ("run", "round", "catalogue", "devices", "sums")}
        arrays = reply.update.arrays()
        expected = self.expected(node, order, arrays)
        return check(node, metadata, arrays, expected, replies) or self.welcome(node, order, reply)

    def welcome(self, node: int, order: Order, reply: Reply) -> Rejection | None:
        """Remember what a node needs next."""
        wanted = reply.wanted
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self.catalogue):
            return Rejection("malformed", "it asks for rows that are not there")
        if reply.devices > self.users(node):
            return Rejection("malformed", f"it speaks for {reply.devices} users, not for {self.users(node)}")
        known = self.nodes.get(node)
        if known is not None and not reply.devices:  # a leg of a secure sum
            return None
        self.nodes[node] = Node(reply.devices, reply.catalogue, torch.from_numpy(wanted), reply.advert, order.next)
        return None

    def rows_expected(self, order: Order) -> Array | None:
        """The rows that an update must have, where that does not depend on what its users did; None: any."""
        rows, channel = self.link.channel.format.rows, self.link.channel
        if rows == "changed" or "top-rows" in channel:
            return None
        return order.shared.ids if rows == "named" else np.arange(len(self.catalogue))

    def expected(self, node: int, order: Order, arrays: Arrays) -> Expected:
        """What an update must look like."""
        items = len(self.catalogue)
        sends = {} if order.kind == "evaluate" else self.link.channel.sends(self.method.sends(), items)
        if self.method.closed_form:  # may have nothing to say of some things in some rounds
            sends = {name: p for name, p in sends.items() if {f"rows:{name}", f"layers:{name}"} & arrays.keys()}
        return Expected(
            self.settings.run,
            order.round,
            self.catalogue.version,
            items,
            {name: param.sized(items) for name, param in sends.items() if param.rows},
            {name: param.sized(items) for name, param in sends.items() if not param.rows},
            self.rows_expected(order),
            self.users(node) if self.link.aggregator.linear else 1,
            self.settings.most_norm,
        )


def as_tensors(arrays: Mapping[str, Array]) -> Params:
    """Copies, which have the alignment of torch's own tensors: alignment can change the last bit of a product."""
    return {name: torch.tensor(value) for name, value in arrays.items()}


def take_in(replies: Iterable[Reply], aggregator: Aggregator) -> Learned:
    """The aggregator takes in what nodes sent; returns what they told besides."""
    figures = Params()
    for reply in replies:
        sent = reply.update
        layers = {name: value[None] for name, value in as_tensors(sent.layers).items()}
        ids, rows = torch.tensor(sent.ids), as_tensors(sent.rows)
        update = Update(aggregator.n_items, ids, torch.tensor([len(ids)]), rows, layers)
        aggregator.add(update, devices=reply.devices)
        for name, pair in reply.sums.items():
            if not name.startswith(("valid ", "test ")):
                figures[name] = figures.get(name, torch.zeros(2, dtype=torch.float64)) + torch.tensor(pair)
    return Learned(figures=figures)


def plausible(reply: Reply, nodes: int) -> bool:
    """Whether metrics of a sum over nodes can be those of its users; each node's were rounded."""
    ranked = [pair for name, pair in reply.sums.items() if name.startswith(("valid ", "test "))]
    slack = 1e-3 * nodes
    return all(count <= reply.devices and -slack <= total <= count + slack for total, count in ranked)


def mean_metrics(replies: Iterable[Reply], kind: str) -> Metrics:
    """Means over all users that were ranked; nothing where none was."""
    totals = dict.fromkeys(NAMES, (0.0, 0))
    for reply in replies:
        for name, (total, count) in totals.items():
            more, users = reply.sums.get(f"{kind} {name}", (0.0, 0))
            totals[name] = total + more, count + users
    return {name: total / count for name, (total, count) in totals.items() if count}


def sum_name(kind: Kind, round_: int, full: bool = False) -> str:
    """The name of a secure sum within its run."""
    return f"round {round_}, {'full' if full else kind}"


def known_items(version: str) -> int:
    """How many items a version of a catalogue has."""
    return int(version.partition("-")[0] or 0)
