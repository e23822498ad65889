"""A federation's server as a Flower ServerApp: the grid is its network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from federec.network.messages import Kind
from federec.network.server import serve
from federec.network.transport import Delivery
from federec.runtimes.flower import secure
from federec.runtimes.flower.records import packed, unpacked

app = ServerApp()

_GRACE = 10.0  # seconds for which Flower keeps a message longer than the server waits for its reply


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the federation of a folder, from where it stands."""
    serve(GridTransport(grid), Path(str(context.run_config["folder"])))


class GridTransport:
    """Flower's SuperLink and SuperNodes."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.secure_sum = partial(secure.ask, grid)

    def nodes(self) -> Collection[int]:
        return set(self.grid.get_node_ids())

    def send(self, messages: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[str, int]:
        sent = [
            Message(packed(content), node, kind, group_id=str(round_), ttl=timeout + _GRACE)
            for node, content in messages.items()
        ]
        names = self.grid.push_messages(sent)
        return {str(name): node for name, node in zip(names, messages, strict=True) if name}

    def collect(self, tickets: Collection[str]) -> Iterator[Delivery]:
        for message in self.grid.pull_messages(list(tickets)):
            ticket = message.metadata.reply_to_message_id
            if message.has_error():
                yield Delivery(ticket, None, f"Flower: {message.error.reason or message.error.code}")
            else:
                yield Delivery(ticket, unpacked(message.content))
