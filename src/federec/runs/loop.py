"""The run loop: rounds, checkpoints on the way, and what came out. Whoever can play rounds is a `Player`."""

from __future__ import annotations

import math
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

import federec
from federec.evaluation.evaluator import Report
from federec.evaluation.metrics import Metrics
from federec.evaluation.protocols import protocol as named_protocol
from federec.federation.state import State
from federec.methods.base import Notes
from federec.runs.checkpointing import Keeper
from federec.runs.config import RunConfig
from federec.runs.folder import Checkpoint, Line, RunFolder
from federec.runs.group import ALONE, Group

OnRound = Callable[[Line, int], None]
"""Told each round's record and how many rounds there will be."""


@dataclass
class Played:
    """One round: how it went, and the state from which its model can be had again."""

    model: State
    valid: Report
    test: Report
    loss: float | None = None
    up_bytes: float | None = None
    down_bytes: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    notes: Notes = field(default_factory=dict)
    users_per_node: float | None = None
    """Where nodes of a network played: the bytes are per node. None: they are per device."""


@dataclass
class Review:
    """The best round, looked at closely."""

    valid: Report
    test: Report
    views: dict[str, Metrics]
    """Sampled test metrics by item view, where the method has several."""
    ranks: dict[str, Tensor]
    """Each evaluated user's rank of the held-out item, to compare methods user by user."""


class Player(Protocol):
    """Whatever can play rounds."""

    state: State

    def play(self, round_: int) -> Played:
        """Play a round and evaluate it."""


class Trainer(Player, Protocol):
    """A method at work on a data set."""

    def review(self, model: State, round_: int) -> Review:
        """Evaluate the model of a played round in full."""

    def scores(self, model: State, round_: int, user: int) -> Tensor:
        """What a user's device makes of every item, [n_items]."""


def play_rounds(
    config: RunConfig,
    data: str,
    worker: Player,
    folder: RunFolder | None,
    point: Checkpoint | None,
    history: list[Line],
    on_round: OnRound | None,
    group: Group = ALONE,
) -> Checkpoint:
    """Play the rounds that are left, with checkpoints on the way; `data` is a fingerprint of what they learn from."""
    rounds, choose = config.rounds or 0, named_protocol(config.protocol).choose
    kept, stored = folder if group.first else None, point.round if point else 0
    with Keeper(kept, stored, group.size == 1) as keeper:
        for number in range(point.round + 1 if point else 1, rounds + 1):
            keeper.begin()
            played = worker.play(number)
            value = played.valid["sampled"][choose]
            due = number == rounds or group.agree(keeper.due(worker.state))
            if point is None or value >= point.best_valid:  # among equals the later round counts
                alive = played.model is worker.state  # and changes in the next round
                after = number if alive else number - 1
                from_ = group.agree(keeper.start_of(played.model, after, number if due and alive else keeper.stored))
                best = None if from_ is not None else played.model.copy() if alive else played.model
                point = Checkpoint(number, worker.state, number, value, best, after, data, from_)
                if best is not None:
                    group.collect(best)
            else:
                point = replace(point, round=number, state=worker.state)
            line = _line(number, played)
            history.append(line)
            if due:
                group.collect(worker.state)
            keeper.end(line, point, due)
            if on_round is not None:
                on_round(line, rounds)
            if keeper.stopping:
                raise KeyboardInterrupt
    assert point is not None
    return point


def bring_back(point: Checkpoint, worker: Trainer, folder: RunFolder, place: str, group: Group = ALONE) -> Checkpoint:
    """The best round's state, which was too large to keep: played again from the newest one stored before it. The
    newest state of all is let go; it has done its work."""
    assert point.best_from is not None
    if point.best_after != point.round:
        for kind in (point.state.private, point.state.stores):
            kind.clear()  # so that there is never more than one in memory
        worker.state = folder.state(point.best_from, place)
        for number in range(point.best_from + 1, point.best_after + 1):
            worker.play(number)
    point = replace(point, state=worker.state, best=worker.state, best_from=None)
    group.collect(point.state)
    if group.first:
        folder.save(point)
    return point


def _line(number: int, played: Played) -> Line:
    """A round's record in rounds.jsonl."""
    finite = played.loss is not None and math.isfinite(played.loss)
    notes = {name: figure for name, figure in played.notes.items() if np.isfinite(figure).all()}
    return (
        {
            "round": number,
            "loss": played.loss if finite else None,
            "valid": played.valid["sampled"],
            "test": played.test["sampled"],
            "up_bytes": played.up_bytes,
            "down_bytes": played.down_bytes,
            "seconds": played.seconds,
        }
        | ({"notes": notes} if notes else {})
        | _users_per_node(played)
    )


def outcome(
    config: RunConfig, data: dict[str, Any], point: Checkpoint, history: list[Line], review: Review, reviewing: float
) -> dict[str, Any]:
    """The contract of result.json; `data` are the facts of what was learned from."""
    parts = ("compile", "train", "evaluate")
    compiled, *spent = (sum(line["seconds"].get(part, 0.0) for line in history) for part in parts)
    played = sum(spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "method": config.method,
        "plugins": list(config.plugins),
        "protocol": config.protocol,
        "seed": config.seed,
        "rounds": len(history),
        "best_round": point.best_round,
        "data": data,
        "valid": review.valid,
        "test": review.test,
        "views": review.views,
        "seconds": {
            "total": compiled + played + reviewing,
            "compile": compiled,
            "train": spent[0],
            "evaluate": spent[1] + reviewing,
            "per_round": played / len(history),
        },
        "peak_rss_mb": peak / (2**20 if sys.platform == "darwin" else 2**10),
        "communication": communication(history),
        "config": config.model_dump(mode="json"),
        "versions": {
            "federec": federec.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def communication(history: list[Line]) -> dict[str, float | None]:
    """Mean bytes of a round: per device, or per node of a network; of both where every node hosts one user."""
    up, down = (_mean([line[f"{way}_bytes"] for line in history]) for way in ("up", "down"))
    per_device = {"up_bytes_per_device_round": up, "down_bytes_per_device_round": down}
    users = _mean([line.get("users_per_node") for line in history])
    if users is None:
        return per_device
    per_node = {"up_bytes_per_node_round": up, "down_bytes_per_node_round": down, "users_per_node": users}
    return per_node | (per_device if users == 1 else {})


def _users_per_node(played: Played) -> dict[str, float]:
    return {} if played.users_per_node is None else {"users_per_node": played.users_per_node}


def _mean(values: list[float | None]) -> float | None:
    """None for a method whose devices send nothing because it is not federated."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
