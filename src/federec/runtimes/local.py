"""The run loop: rounds, checkpoints on the way, the best round looked at closely at the end."""

from __future__ import annotations

import math
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import federec
from federec.data.interactions import Interactions
from federec.data.split import Split, leave_one_out
from federec.errors import UserError
from federec.evaluation.protocols import protocol as named_protocol
from federec.methods.base import Method
from federec.plugins.registry import build
from federec.reporting.report import html_report
from federec.runtimes.config import RunConfig
from federec.runtimes.distributed import ALONE, Group
from federec.runtimes.folder import Checkpoint, Line, RunFolder
from federec.runtimes.keeper import Keeper
from federec.runtimes.run import Run, data_of, fingerprint, make_trainer, usable
from federec.runtimes.trainers import Played, Player, Review, Trainer

OnRound = Callable[[Line, int], None]
"""Told each round's record and how many rounds there will be."""


def train(
    method: Method | str,
    data: Interactions,
    *,
    rounds: int | None = None,
    protocol: str = "clean",
    seed: int = 0,
    participation: float | None = None,
    evaluate_users: int | None = None,
    plugins: Sequence[str] = (),
    device: str = "cpu",
    engine: str = "auto",
    out: str | Path | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Train a method on a data set. With `out`, every round is kept there and the run can be resumed."""
    if isinstance(method, str):
        method = build(method)
    if plugins:
        method = build(method.name, (*method.plugins, *plugins), method.model_dump())
    given = {"rounds": rounds, "protocol": protocol, "seed": seed, "participation": participation}
    given |= {"evaluate_users": evaluate_users, "device": device, "engine": engine}
    config = RunConfig.of(method, data, **given)
    return run(config, data, RunFolder(out) if out is not None else None, on_round)


def run(
    config: RunConfig,
    data: Interactions,
    folder: RunFolder | None,
    on_round: OnRound | None = None,
    group: Group = ALONE,
) -> Run:
    """A new run from its configuration."""
    with group.together():
        split = leave_one_out(data, config.seed)
        worker = make_trainer(config, split, _place(config, group), group)
        if folder is not None and group.first:  # only now, when everything that could refuse to start has started
            folder.create(config)
    return _loop(config, split, worker, folder, None, [], on_round, group)


def resume(
    path: str | Path, data: Interactions | None = None, on_round: OnRound | None = None, group: Group = ALONE
) -> Run:
    """Continue an interrupted run; its end is the same as if it had never stopped. Its data is loaded again, unless
    given."""
    folder = RunFolder(path)
    with group.together():
        config = folder.config()
        if folder.federated:
            raise UserError(f"{path}: is a federation's; continue it with: federec federation up --resume {path}")
        if folder.finished:
            return Run.load(path, data)
        place = _place(config, group)
        point = folder.checkpoint(place)
        history = folder.lines(point.round if point else 0)
        split = leave_one_out(data_of(config, point, data), config.seed)
        worker = make_trainer(config, split, place, group)
        if point is not None:
            worker.state = point.state
    if group.first:  # now that all have read it
        folder.sweep(history, point)
    return _loop(config, split, worker, folder, point, history, on_round, group)


def _place(config: RunConfig, group: Group) -> str:
    """The device to train on, which must be there."""
    if not usable(config.device):
        raise UserError(f"no GPU '{config.device}' is usable here; leave out --device, or see `federec doctor`")
    return group.place(config.device)


def _loop(
    config: RunConfig,
    split: Split,
    worker: Trainer,
    folder: RunFolder | None,
    point: Checkpoint | None,
    history: list[Line],
    on_round: OnRound | None,
    group: Group,
) -> Run:
    """Rounds from where `point` stands to the end, and what came out."""
    point = play_rounds(config, fingerprint(split.data), worker, folder, point, history, on_round, group)
    if point.best is None:
        assert folder is not None
        point = bring_back(point, worker, folder, group.place(config.device), group)
    assert point.best is not None
    began = time.perf_counter()
    review = worker.review(point.best, point.best_round)
    reviewing, data = time.perf_counter() - began, split.data
    facts = {
        "name": data.name,
        "users": data.n_users,
        "items": data.n_items,
        "interactions": len(data),
        "evaluated_users": len(review.ranks["test sampled"]),
        "merged_duplicates": max(0, data.merged),  # data made in memory may not know
        "sha256": data.sha256 or point.data,
    }
    result = outcome(config, facts, point, history, review, reviewing)
    if folder is not None and group.first:
        folder.write_result(result, review.ranks, html_report(result, history))
    return Run(config, result, history, point, split.data, review.ranks)


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
    return {
        "round": number,
        "loss": played.loss if finite else None,
        "valid": played.valid["sampled"],
        "test": played.test["sampled"],
        "up_bytes": played.up_bytes,
        "down_bytes": played.down_bytes,
        "seconds": played.seconds,
    } | ({"notes": notes} if notes else {})


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
        "communication": {
            "up_bytes_per_device_round": _mean([line["up_bytes"] for line in history]),
            "down_bytes_per_device_round": _mean([line["down_bytes"] for line in history]),
        },
        "config": config.model_dump(mode="json"),
        "versions": {
            "federec": federec.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def _mean(values: list[float | None]) -> float | None:
    """None for a method whose devices send nothing because it is not federated."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
