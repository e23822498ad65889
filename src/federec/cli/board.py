"""What `federec federation up` shows while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """How to show each event: not at all when quiet; as a table of devices on a terminal; else as a line a round."""
    if quiet:
        yield lambda event: None
    elif not sys.stderr.isatty():
        yield _log
    else:
        from rich.console import Console
        from rich.live import Live

        board = Board()
        with Live(console=Console(stderr=True), transient=True) as live:

            def show(event: dict[str, Any]) -> None:
                board.take(event)
                live.update(board.table())

            yield show


def _log(event: dict[str, Any]) -> None:
    text = {
        "waiting": "round {round}: {devices} devices there, waiting for {wanted}",
        "round": "round {round}/{rounds}  {loss}{valid}{seconds:.1f} s",
        "rejected": "round {round}: device {device} refused ({reason}: {detail})",
        "missing": "round {round}: device {device} did not answer in time",
        "again": "round {round}: {answered} devices answered, {minimum} are needed; the round is played again",
        "lost": "round {round}: came to nothing ({reason}); the next one goes on",
        "spoiled": "round {round}: a sum over {count} devices was spoiled ({reason})",
        "alarm": "round {round}: {reason}",
        "catalogue": "{items} items now",
    }.get(kind := event["event"])
    if text:
        loss = "" if event.get("loss") is None else f"loss {event['loss']:.4g}  "
        more = {
            "loss": loss,
            "valid": f"{_valid(event)}  ".lstrip(),
            "count": len(event["devices"]) if kind == "spoiled" else 0,
        }
        print(text.format(**event | more), file=sys.stderr, flush=True)


def _valid(event: dict[str, Any]) -> str:
    """The metric of a round, where devices told one."""
    return "" if event.get("hr@10") is None else f"valid hr@10 {event['hr@10']:.4f}"


class Board:
    """The newest of every device, and of the round."""

    def __init__(self) -> None:
        self.title = "starting"
        self.devices: dict[str, list[str]] = {}

    def take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "asked":
            self.title = f"round {event['round']}: {event['kind']}, {event['devices']} devices asked"
        elif kind == "round":
            parts = filter(None, (_valid(event), f"{event['seconds']:.1f} s"))
            self.title = f"round {event['round']} of {event['rounds']}: {', '.join(parts)}"
        elif kind == "waiting":
            self.title = "round {round}: {devices} devices there, waiting for {wanted}".format(**event)
        elif kind == "reply":
            self.devices[event["device"]] = [str(event["users"]), str(event["round"]), f"{event['kind']}: answered"]
        elif kind in ("rejected", "missing"):
            users = self.devices.get(event["device"], ["?"])[0]
            state = f"refused: {event['reason']}" if kind == "rejected" else "did not answer in time"
            self.devices[event["device"]] = [users, str(event["round"]), state]

    def table(self) -> Table:
        from rich.table import Table

        table = Table("device", "users", "round", "state", title=self.title, title_justify="left", box=None)
        for device, cells in sorted(self.devices.items()):
            table.add_row(device[-6:], *cells)
        return table
