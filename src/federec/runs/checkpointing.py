"""When a run is stored. A small state goes to the run folder after every round, and the best one is kept in memory too.

A large one (FedRAP's private tables take gigabytes) is stored as often as that takes little of the time, and never
copied: the best round is had again from the newest state stored before it, by playing the rounds between. Rounds are a
pure function of the state they begin with, so that is the same model to the last bit.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from federec.federation.state import State
from federec.runs.folder import LARGE, Checkpoint, Line, RunFolder

SHARE = 0.05
"""Of the time, that storing large states may take."""


class Keeper:
    """Stores a run's checkpoints in its folder, if it has one. Interrupted, it stores the rounds that would be lost;
    for that, Ctrl-C waits for the end of the round. A second one does not wait."""

    def __init__(self, folder: RunFolder | None, stored: int, alone: bool = True) -> None:
        """`alone`: the state is whole in this process between two rounds, so that it can be stored at once."""
        self.folder, self.alone = folder, alone
        self.stored = stored
        """Rounds played before the newest state in the folder; 0 where there is none."""
        self.behind = False
        """Rounds have been played since."""
        self.stopping = False
        self._between: Checkpoint | None = None
        self._cost, self._since = 0.0, time.monotonic()

    def due(self, state: State) -> bool:
        """Whether to store the state after this round."""
        return state.private_bytes <= LARGE or self._cost <= SHARE * (time.monotonic() - self._since)

    def start_of(self, best: State, after: int, stored: int) -> int | None:
        """Where to play on from to have the best state again, which comes after so many rounds: the newest state that
        will be stored. None: it is small, and kept instead, or the newest one is none that leads to it."""
        large = self.folder is not None and best.private_bytes > LARGE
        return stored if large and 0 < stored <= after else None

    def begin(self) -> None:
        """A round begins: until it ends, there is nothing whole to store."""
        self._between = None

    def end(self, line: Line, point: Checkpoint, due: bool) -> None:
        """A round has ended."""
        if self.folder is None:
            return
        self.folder.add_line(line)
        self._between, self.behind = point, True
        if due:
            self._save(point)

    def _save(self, point: Checkpoint) -> None:
        assert self.folder is not None
        began = time.monotonic()
        self.folder.save(point)
        self.stored, self.behind, self._since = point.round, False, time.monotonic()
        self._cost = self._since - began

    def __enter__(self) -> Self:
        # Only the main thread may handle signals; and who handles this one already goes on doing so.
        main = threading.current_thread() is threading.main_thread()
        self._handles = self.alone and main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._handles:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.stopping or not self.behind:
            raise KeyboardInterrupt
        self.stopping = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is KeyboardInterrupt and self.alone and self.behind and self._between is not None:
            self._save(self._between)
