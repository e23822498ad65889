"""When a run is stored. A small state is stored in the run folder after every round, and the best one is also kept in
memory.

A large state (FedRAP's private tables take gigabytes) is stored only as often as that takes little of the time, and is
never copied. The best round is recomputed from the newest state stored before it, by playing the rounds in between. A
round is a pure function of the state it begins with, so the recomputed model is the same to the last bit.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from federec.federation.state import State
from federec.runs.folder import LARGE, Checkpoint, Line, RunFolder

FRACTION = 0.05
"""Fraction of the time that storing large states may take."""


class Checkpointing:
    """Stores a run's checkpoints in its folder, if it has one. Where rounds are played but not stored yet, Ctrl-C waits
    for the end of the round and stores it. A second Ctrl-C does not wait."""

    def __init__(self, folder: RunFolder | None, stored: int, alone: bool = True) -> None:
        """`alone`: between two rounds this process has the whole state, so that it can be stored at any time."""
        self.folder, self.alone = folder, alone
        self.stored = stored
        """Rounds played before the newest state in the folder; 0 where there is none."""
        self.behind = False
        """Whether rounds have been played since."""
        self.stopping = False
        self._between: Checkpoint | None = None
        self._cost, self._since = 0.0, time.monotonic()

    def due(self, state: State) -> bool:
        """Whether to store the state after this round."""
        return state.private_bytes <= LARGE or self._cost <= FRACTION * (time.monotonic() - self._since)

    def start_of(self, best_state: State, after: int, stored: int) -> int | None:
        """Rounds before the stored state from which to recompute the best state, which comes after `after` rounds. None
        where the best state is kept instead: it is small, or no state stored so far leads to it."""
        large = self.folder is not None and best_state.private_bytes > LARGE
        return stored if large and 0 < stored <= after else None

    def begin(self) -> None:
        """A round begins: until it ends, there is no complete state to store."""
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
        # Only the main thread may handle signals, and a handler that somebody else has set stays.
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
