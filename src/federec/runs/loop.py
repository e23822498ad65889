"""The run loop plays rounds, stores checkpoints on the way and writes the result. A `Player` is anything that can play
rounds."""

from __future__ import annotations

import logging
import math
import os
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

import federec
from federec.evaluation.evaluator import Report
from federec.evaluation.metrics import Metrics, metric_of
from federec.evaluation.protocols import protocol
from federec.federation.state import State
from federec.methods.base import Method, Notes
from federec.runs.best import Best
from federec.runs.budget import Budget
from federec.runs.checkpointing import Checkpointing
from federec.runs.config import RunConfig
from federec.runs.folder import Checkpoint, Line, RunFolder, state_name
from federec.runs.group import ALONE, Group

log = logging.getLogger("federec")

OnRound = Callable[[Line, int], None]
"""Called with each round's record and the number of rounds of the run."""


@dataclass
class Played:
    """One round: how it went, and the state from which its model can be recomputed."""

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
    engine: str | None = None
    """What played it, where that can be chosen."""


@dataclass
class Review:
    """The full evaluation of the best round."""

    valid: Report
    test: Report
    views: dict[str, Metrics]
    """Sampled test metrics by item view, where the method has several."""
    ranks: dict[str, Tensor]
    """Ranks of held-out items, to compare methods user by user. `users` [E]: codes of the evaluated users.
    `valid sampled`, `test sampled` [E]: the rank of each one's first held-out item, -1 where it has none. `valid full`,
    `test full` [P]: the ranks of all held-out items; `valid owner`, `test owner` [P]: the row in `users` that each
    belongs to, left out where every user has one. `fresh sampled`, `fresh full`: those of test with a fresh
    history. And what a report needs: see `evaluation.counts`."""
    fresh: Report = field(default_factory=dict)
    """Test metrics with a fresh history, to which the validation items belong; empty where it changes nothing."""
    attack: dict[str, Any] = field(default_factory=dict)
    """What came of an attack; empty where there was none."""


class EngineChoice(NamedTuple):
    """What plays the rounds."""

    used: str
    """`torch` or `fused`."""
    reason: str
    """Why, in one sentence."""


class Player(Protocol):
    """Anything that can play rounds."""

    state: State

    def play(self, round_: int) -> Played:
        """Play a round and evaluate it."""


class Trainer(Player, Protocol):
    """A method that trains on a data set."""

    engine_choice: EngineChoice

    def review(self, model: State, round_: int) -> Review:
        """Evaluate the model of a played round in full."""


def play_rounds(
    config: RunConfig,
    data: str,
    worker: Player,
    folder: RunFolder | None,
    point: Checkpoint | None,
    history: list[Line],
    on_round: OnRound | None,
    group: Group = ALONE,
    budget: Budget | None = None,
) -> Checkpoint:
    """Play the remaining rounds and store checkpoints on the way. `data` is the fingerprint of the training data. A run
    with a privacy budget ends when that is used up."""
    rounds, stored = config.rounds or 0, point.round if point else 0
    with Checkpointing(folder if group.first else None, stored, group.size == 1) as checkpoints:
        for number in range(stored + 1, rounds + 1):
            if point is not None and _ends(config, point.best, history[-1]):
                break
            if budget is not None:
                if budget.ends(number):
                    break
                budget.charge(number)
            checkpoints.begin()
            played = worker.play(number)
            alive = played.model is worker.state  # the next round will change it
            before = point.best if point else Best()
            best = before.considered(number, selected(config, played.valid), number if alive else number - 1)
            line = _line(number, played)
            last = number == rounds or _ends(config, best, line) or _used_up(budget, number, rounds)
            due = last or group.agree(checkpoints.due(worker.state))
            if point is None or best is not before:
                newest = number if due and alive else checkpoints.stored
                from_ = group.agree(checkpoints.start_of(played.model, best.after, newest))
                best_state = None
                if from_ is None:
                    best_state = played.model.copy() if alive else played.model
                    group.collect(best_state)
                point = Checkpoint(number, worker.state, best, best_state, data, from_)
            else:
                point = replace(point, round=number, state=worker.state)
            history.append(line)
            if due:
                group.collect(worker.state)
            checkpoints.end(line, point, due)
            if on_round is not None:
                on_round(line, rounds)
            if checkpoints.stopping:
                raise KeyboardInterrupt
    assert point is not None
    return point


def bring_back(point: Checkpoint, worker: Trainer, folder: RunFolder, device: str, group: Group = ALONE) -> Checkpoint:
    """The checkpoint with the best round's state, which was too large to keep: it is recomputed from the newest state
    stored before it. The state after the last round is dropped, since nothing needs it any more."""
    assert point.best_from is not None
    if point.best.after != point.round:
        for kind in (point.state.private, point.state.stores):
            kind.clear()  # so that memory never holds more than one state
        with group.files(folder.path, [f"model/{state_name(point.best_from)}"]) as path:
            worker.state = RunFolder(path).state(point.best_from, device)
        for number in range(point.best_from + 1, point.best.after + 1):
            worker.play(number)
    point = replace(point, state=worker.state, best_state=worker.state, best_from=None)
    group.collect(point.state)
    if group.first:
        folder.save(point)
    return point


def selected(config: RunConfig, valid: Report) -> float | None:
    """The value on validation that picks the round; None where it was not measured."""
    kind, metric = metric_of(config.select or protocol(config.protocol).select)
    return valid.get(kind, {}).get(metric)


def _ends(config: RunConfig, best: Best, line: Line) -> bool:
    """Whether a run has no patience left after a round. Only a round that was ranked can say that it is not better."""
    valid: Report = {"sampled": line["valid"]}
    if "valid_full" in line:
        valid["full"] = line["valid_full"]
    return selected(config, valid) is not None and best.stale(line["round"], config.patience)


def _used_up(budget: Budget | None, number: int, rounds: int) -> bool:
    """Whether a round is the last one that the privacy budget pays for."""
    if budget is None or number >= rounds or not budget.ends(number + 1):
        return False
    limit = budget.account.limit
    log.warning("privacy: round %d would exceed epsilon %g; the run ends after round %d", number + 1, limit, number)
    return True


def _line(number: int, played: Played) -> Line:
    """A round's record in rounds.jsonl."""
    finite = played.loss is not None and math.isfinite(played.loss)
    notes = {name: figure for name, figure in played.notes.items() if np.isfinite(figure).all()}
    return (
        {
            "round": number,
            "loss": played.loss if finite else None,
            "valid": played.valid.get("sampled", {}),
            "test": played.test.get("sampled", {}),
            "up_bytes": played.up_bytes,
            "down_bytes": played.down_bytes,
            "seconds": played.seconds,
        }
        | ({"valid_full": played.valid["full"]} if "full" in played.valid else {})
        | ({"notes": notes} if notes else {})
        | ({"engine": played.engine} if played.engine else {})
        | _users_per_node(played)
    )


def outcome(
    config: RunConfig,
    method: Method,
    data: dict[str, Any],
    engine: EngineChoice,
    point: Checkpoint,
    history: list[Line],
    review: Review,
    reviewing: float,
    privacy: dict[str, Any],
) -> dict[str, Any]:
    """The contract of result.json. `data` describes the training data, `reviewing` is how long the review took,
    `privacy` is what there is to say of it."""
    parts = ("compile", "train", "evaluate")
    compiled, *spent = (sum(line["seconds"].get(part, 0.0) for line in history) for part in parts)
    played = sum(spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "method": method.name,
        "plugins": list(method.plugins),
        "protocol": config.protocol,
        "seed": config.seed,
        "rounds": len(history),
        "best_round": point.best.round,
        "selection": {"metric": config.select, "value": point.best.value},
        "engine": engine._asdict(),
        "data": data,
        "valid": review.valid,
        "test": review.test | ({"fresh": review.fresh} if review.fresh else {}),
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
        "machine": _machine(config.device),
        **({"attack": review.attack} if review.attack else {}),
    } | privacy


def _machine(device: str) -> dict[str, Any]:
    """What the run was computed on, as far as it decides how long that takes."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # only Linux has this file
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    machine = {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return machine | ({"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {})


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
    """None where no device sends anything, because the method is not federated."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
