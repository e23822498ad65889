"""Secure aggregation: the server learns the sum over nodes, and nothing of a single one (SecAgg+, Bell et al. 2020).

The protocol is Flower's: `secaggplus_mod` on the nodes and `SecAggPlusWorkflow` on the server. Both are of Flower's
older interface; all that knows of it is here. In four trips nodes agree on masks that cancel in the sum, send masked
vectors, and help to take off the masks of those that dropped out.

A node's vector is the mean over its users of their losses and metrics and of what they send, item tables whole, with a
1 for each parameter that is sent in this round and a 0 for each that is not. It is weighed with the number of users,
which the server knows. Values beyond +-`most` are cut off, the rest is rounded to one of 2^22 steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid

from federec.cohort.layers import Params
from federec.evaluation.metrics import rank_metrics
from federec.federation.device import LOSS
from federec.methods.base import DeviceMethod
from federec.network.device import Work
from federec.network.exchange import Exchange
from federec.network.guard import Rejection
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.runtimes.flower.records import CONTENT, content_of, size

_SHARES, _NEEDED = 1.0, 0.6  # fraction of nodes that hold shares of a node's keys; and that can take its mask off


# Both sides


def flat(reply: Reply, method: DeviceMethod, n_items: int) -> torch.Tensor:
    """A node's vector: which parameters it has something to say of, and the mean over its users."""
    parts = [torch.as_tensor(reply.sums.get(name, (0.0, 0)), dtype=torch.float32) for name in _names()]
    scale = torch.tensor([[n_items if name == "interactions" else 1.0, 1.0] for name in _names()])
    parts = [torch.stack(parts) / scale]
    values, sends = reply.update.rows | reply.update.layers, method.sends()
    for name, param in sends.items():
        parts.append(values.get(name, torch.zeros((n_items,) * param.rows + param.sized(n_items))))
    said = torch.tensor([float(name in values) for name in sends])
    return torch.cat([said, torch.cat([part.flatten() for part in parts]) / max(1, reply.devices)])


def unflat(vector: torch.Tensor, order: Order, users: int, method: DeviceMethod, n_items: int) -> Reply:
    """The reply that the weighted mean of all vectors stands for."""
    names, sends = _names(), method.sends()
    said, vector = (vector[: len(sends)] > 0.5).tolist(), vector[len(sends) :] * users
    pairs, rest = vector[: 2 * len(names)].view(-1, 2).tolist(), vector[2 * len(names) :]
    sums = {
        name: (total * (n_items if name == "interactions" else 1), round(count))
        for name, (total, count) in zip(names, pairs, strict=True)
        if round(count)
    }
    rows: Params = {}
    layers: Params = {}
    for (name, param), told in zip(sends.items(), said, strict=True):
        shape = (n_items,) * param.rows + param.sized(n_items)
        value, rest = rest[: np.prod(shape, dtype=int)].view(shape), rest[np.prod(shape, dtype=int) :]
        if told:
            (rows if param.rows else layers)[name] = value
    update = Payload(torch.arange(n_items if rows else 0), rows, layers)
    return Reply(order.run, order.round, "", users, sums, update=update)


def _names() -> list[str]:
    metrics = rank_metrics(torch.zeros(1))
    kinds = [f"{part} {kind}" for part in ("valid", "test") for kind in ("sampled", "full")]
    return [LOSS, "interactions", *(f"{kind} {name}" for kind in kinds for name in metrics)]


# On a node


def belongs(message: Message) -> bool:
    """Whether a message is part of the protocol."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def answer(message: Message, context: Context, carry_out: Callable[[Order], tuple[Reply, Work]]) -> Message:
    """Take part in the protocol; `carry_out` does what is ordered when it comes to that."""

    def next_(message: Message, context: Context) -> Message:
        config = compat.recorddict_to_fitins(message.content, keep_input=True).config
        reply, work = carry_out(Order.parse(content_of(config)))
        parameters = ndarrays_to_parameters([flat(reply, work.method, work.devices.n_items).numpy()])
        result = FitRes(Status(Code.OK, ""), parameters, reply.devices, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)

    return secaggplus_mod(message, context, next_)


# On the server


def ask(
    grid: Grid,
    exchange: Exchange,
    orders: Mapping[int, Order],
    users: Mapping[int, int],
    method: DeviceMethod,
    n_items: int,
    most: float,
) -> tuple[Reply | None, int]:
    """The sum of the nodes' replies, and of how many; None where too few were left."""
    order = next(iter(orders.values()))
    taken = _Taken(orders)
    workflow = SecAggPlusWorkflow(
        _SHARES,
        _NEEDED,
        max_weight=float(max(users[node] for node in orders)),
        clipping_range=most,
        timeout=exchange.settings.deadline,
    )
    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: order.round})})
    state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(Parameters([], ""), True)
    context = Context(run_id=0, node_id=0, node_config={}, state=state, run_config={})
    exchange.events.say("asked", kind=f"secure {order.kind}", round=order.round, devices=len(orders))
    workflow(_Tap(grid, exchange, order.round), LegacyContext(context, strategy=taken))  # type: ignore[arg-type]
    if taken.vector is None:
        return None, 0
    total = sum(users[node] for node in taken.nodes)
    return unflat(taken.vector, order, total, method, n_items), len(taken.nodes)


class _Proxy:
    """What the workflow needs to know of a node."""

    def __init__(self, node: int) -> None:
        self.node_id = node


class _Taken(FedAvg):
    """Hands orders to the workflow, and takes the mean from it."""

    def __init__(self, orders: Mapping[int, Order]) -> None:
        super().__init__()
        self.orders = orders
        self.vector: torch.Tensor | None = None
        self.nodes: list[int] = []

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list[Any]:
        return [
            (_Proxy(node), FitIns(Parameters([], ""), {CONTENT: order.pack()})) for node, order in self.orders.items()
        ]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        self.nodes = [proxy.node_id for proxy, _ in results]
        self.vector = torch.from_numpy(parameters_to_ndarrays(results[0][1].parameters)[0]).float()
        return None, {}


class _Tap:
    """The grid as the workflow uses it: counts, records, has a deadline, and knows who failed."""

    def __init__(self, grid: Grid, exchange: Exchange, round_: int) -> None:
        self.grid, self.exchange, self.round = grid, exchange, round_

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages, exchange = list(messages), self.exchange
        for message in messages:
            exchange.count("down", size(message))
        names = self.grid.push_messages(messages)
        pending = {
            str(name): message.metadata.dst_node_id for name, message in zip(names, messages, strict=True) if name
        }
        limit, replies = time.monotonic() + (timeout or 0.0), []
        while pending and time.monotonic() < limit:
            for message in self.grid.pull_messages(list(pending)):
                node = pending.pop(message.metadata.reply_to_message_id)
                if message.has_error():
                    exchange.refuse(node, self.round, Rejection("failed", "it left secure aggregation"))
                    continue
                exchange.count("up", size(message))
                exchange.record(_values(message.content))
                replies.append(message)
            if pending:
                time.sleep(exchange.poll)
        for node in pending.values():
            exchange.missed(node, "secure", self.round)
        return replies


def _values(content: RecordDict) -> Iterator[bytes]:
    """Everything in a message, as bytes."""
    for arrays in content.array_records.values():
        yield from (array.data for array in arrays.values())
    for record in content.config_records.values():
        for entry in record.values():
            values = entry if isinstance(entry, list) else [entry]
            yield b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in values)
