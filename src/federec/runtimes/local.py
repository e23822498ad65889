"""Training in this process, or in several that torchrun started: a new run, or an interrupted one."""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import numpy as np
import torch

import federec
from federec.data.describe import reading, remarks
from federec.data.interactions import Interactions
from federec.data.sets import Loadable, load
from federec.data.split import Split, Ties
from federec.errors import UserError, did_you_mean
from federec.files import as_path
from federec.methods.base import Method
from federec.methods.default import default_method
from federec.methods.registry import method_class
from federec.plugins.registry import Plugins, build, with_plugins
from federec.reporting.details import examples_of
from federec.reporting.live import live
from federec.reporting.report import html_report
from federec.runs.budget import budget_of, resolved
from federec.runs.budget import described as told_privacy
from federec.runs.config import RunConfig, fewer_rounds
from federec.runs.folder import Checkpoint, Line, RunFolder
from federec.runs.group import ALONE, Group
from federec.runs.loop import OnRound, Trainer, bring_back, outcome, play_rounds
from federec.runs.plan import plan
from federec.runs.plan import remarks as remarks_of
from federec.runtimes.run import Run, data_of, fingerprint, usable
from federec.runtimes.simulation import make_trainer
from federec.stages.registry import Channel
from federec.stages.registry import channel as plain_channel
from federec.tracking.base import Tracker
from federec.tracking.registry import Track, checked, remembered
from federec.tracking.tracking import tracking

log = logging.getLogger("federec")


def train(
    method: Method | type[Method] | str | None = None,
    data: Loadable = "tastes",
    *,
    rounds: int | None = None,
    protocol: str = "clean",
    seed: int = 0,
    split: str | None = None,
    ties: Ties | None = None,
    participation: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    max_epsilon: float | None = None,
    fresh_steps: int = 0,
    evaluate_users: int | None = None,
    select: str | None = None,
    patience: int | None = None,
    plugins: Plugins = (),
    device: str = "cpu",
    engine: str = "auto",
    channel: Channel = (),
    aggregator: str | None = None,
    attack: str | None = None,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    progress: bool | None = None,
    track: Track = (),
    **unknown: Never,
) -> Run:
    """Train a method on data, which is whatever `load` accepts.

    The method is this very object, or one with default settings from a class or a reference (`pfedrec`,
    `path/to/mine.py:Mine`, `package.module:Mine`); without one, what ranks best on such data, which the logger
    `federec` names with the reason. Plug-ins are objects, classes or references: one, or a list. `split` says what is
    held out: `leave-one-out`, `time`, `ratio` or `given`, with fractions: `time:0.8,0.1,0.1`; `ties` in which order a
    user's interactions with equal times are: at `random`, or as in the `file`. `select` is the validation metric that
    picks the round, such as `full.ndcg@10`; with `patience` a run ends after so many rounds without a better one. With
    `fresh_steps` devices learn from their fresh history, validation items included, for so many rounds by themselves
    before test items are ranked once more. `channel` is one stage between device and server, or a list of them, as
    objects or texts (`clip:norm=1`). `aggregator` says how the server makes one of many updates, `attack` what some of
    the devices do instead of learning honestly, as texts (`item-clip:norm=10`, `promote:fraction=0.05`). With `epsilon`
    the run is differentially private for each user: it clips updates and adds noise that is chosen so that epsilon is
    not exceeded, at this `delta` (1e-6). `max_epsilon` ends a run before the round that would exceed it. With `out`,
    every round is kept there and the run can be resumed. `on_round` gets each round's record and the number of rounds.
    `progress`: a live line, by default in notebooks and on terminals. `track` names other programs that the run is
    logged for: `fr.TensorBoard()`, `fr.MLflow()`, or texts (`mlflow:experiment=films`).

    >>> run = fr.train(fr.FedMF(dim=8) | fr.Recency(), data, rounds=2, seed=0)
    >>> 0 <= run.test["full"]["ndcg@10"] <= 1
    True
    >>> noisy = fr.train("fedmf", data, rounds=1, channel=[fr.Clip(norm=1.0), "gaussian:scale=0.1"])
    """
    refuse_unknown(train, unknown, method)
    data = load(data)
    why = ""
    if method is None:
        chosen = default_method(data)
        method, why = build(chosen.name, (), chosen.settings), chosen.why
    if not isinstance(method, Method):
        method = build(method)
    if plugins:
        method = with_plugins(method, plugins)
    given: dict[str, Any] = {"rounds": rounds, "protocol": protocol, "seed": seed, "participation": participation}
    given |= {
        "split": split,
        "ties": ties,
        "epsilon": epsilon,
        "delta": delta,
        "max_epsilon": max_epsilon,
        "fresh_steps": fresh_steps,
        "evaluate_users": evaluate_users,
        "select": select,
        "patience": patience,
    }
    given |= {"device": device, "engine": engine}
    given |= {"channel": plain_channel(channel), "aggregator": aggregator, "attack": attack}
    config = RunConfig.of(method, data, **given)
    folder = RunFolder(out) if out is not None else None
    _callable(on_round)
    for sentence in (*fewer_rounds(config, rounds), *remarks(data, in_python=True)):
        warnings.warn(sentence, stacklevel=2)
    with live(progress, on_round) as called:
        if why:
            log.info("method %s: %s", config.method, why)
        return run(config, data, folder, called, method=method, track=track)


def run(
    config: RunConfig,
    data: Interactions,
    folder: RunFolder | None,
    on_round: OnRound | None = None,
    group: Group = ALONE,
    method: Method | None = None,
    track: Track = (),
    brief: bool = False,
) -> Run:
    """A new run from its configuration; of the given method, or of the one that the configuration names. `brief`: its
    rounds only have the metric that picks the best one; the best one is evaluated in full as ever."""
    with group.together():
        tracked = checked(track, folder.path if folder is not None else None) if group.first else []
        method = config.build(method)
        split = config.split_of(data)
        learners = int((np.diff(split.ptr) > 0).sum())
        config = resolved(config, method, learners, data.n_items)
        if group.first and (config.epsilon or config.max_epsilon):
            for sentence in remarks_of(plan(config, method, learners, data.n_items)):
                log.warning("%s", sentence)
    _require_same(group, config, data)
    if folder is not None and group.restarts and _begun(folder, config, group):
        return resume(folder.path, data, on_round, group, method)
    with group.together():
        worker = make_trainer(config, method, split, _device(config, group), group, brief=brief)
        if folder is not None and group.first:  # only now, when everything that could refuse to start has started
            folder.create(config)
    return _loop(config, method, split, worker, folder, None, [], on_round, group, tracked)


def resume(
    path: str | Path,
    data: Loadable | None = None,
    on_round: OnRound | None = None,
    group: Group = ALONE,
    method: Method | None = None,
) -> Run:
    """Continue an interrupted run; its end is the same as if it had never stopped. Its data is loaded again, unless
    given, and its method is found again, unless given: one made in an interactive session must be. A run that was
    tracked goes on being tracked.

    >>> run = fr.train("fedmf", data, rounds=1, out="runs/a")
    >>> fr.resume("runs/a", data).test == run.test  # it was finished already
    True
    """
    _callable(on_round)
    with group.files(as_path(path), _NEEDED) as copied:
        return _resume(RunFolder(path) if group.first else RunFolder(copied), data, on_round, group, method)


def _resume(
    folder: RunFolder, data: Loadable | None, on_round: OnRound | None, group: Group, method: Method | None
) -> Run:
    path = folder.path
    with group.together():
        config = folder.config(method)
        if folder.federated:
            raise UserError(f"{path}: is a federation's; continue it with: federec federation up --resume {path}")
        if folder.finished:
            return Run.load(path, data, method)
        method = config.build(method)
        for file in config.changed(method):
            raise UserError(f"{file}: has changed since this run began; bring the old file back or start a new run")
        device = _device(config, group)
        point = folder.checkpoint(device)
        history = folder.lines(point.round if point else 0)
        split = config.split_of(data_of(config, point, data))
    _require_same(group, config, split.data)
    with group.together():
        worker = make_trainer(
            config, method, split, device, group, history[-1].get("engine", "torch") if history else None
        )
        if point is not None:
            worker.state = point.state
        tracked = remembered(folder.path) if group.first else []
    if group.first:  # now that all have read it
        folder.sweep(history, point)
    return _loop(config, method, split, worker, folder, point, history, on_round, group, tracked)


_NEEDED = ("config.yaml", "federation.json", "rounds.jsonl", "result.json", "model/*")
"""Files of a run folder that a process needs to continue the run."""


def _begun(folder: RunFolder, config: RunConfig, group: Group) -> bool:
    """Whether the folder holds this very run already: then its command was started again to continue it."""
    begun = group.agree(folder.started)
    with group.together():
        if group.first and begun:
            folder.refuse_unlike(config)
        if folder.started and not begun:
            what = "holds a run on this machine, but not on that of the first process"
            raise UserError(f"{folder.path}: {what}; copy it there, or use a folder that all machines share")
    return begun


def _require_same(group: Group, config: RunConfig, data: Interactions) -> None:
    """Refuse processes that would not train the same: their sums would mean nothing."""
    if group.size == 1:
        return
    own = {
        "the version of federec": federec.__version__,
        "the version of torch": torch.__version__,
        "the data": fingerprint(data),
        "the settings and paths of the run": config.text(),
    }
    first = group.agree(own)
    with group.together():
        for what, value in own.items():
            if value != first[what]:
                raise UserError(f"{what} must be the same as in the first process")


def refuse_unknown(called: Callable[..., Any], unknown: Mapping[str, Any], method: Any) -> None:
    """Refuse arguments that a function does not have. Some are meant for the method."""
    for key, value in unknown.items():
        class_ = type(method) if isinstance(method, Method) else method_class(method or "fedease")
        if key in class_.model_fields:
            own = "fr." if class_.__module__.startswith("federec.") else ""
            settings = f"{own}{class_.__name__}({key}={value!r:.80})"
            raise UserError(f"'{key}' is a setting of the method; give it there: fr.{called.__name__}({settings}, ...)")
        known = [name for name in inspect.signature(called).parameters if name != "unknown"]
        raise UserError(f"fr.{called.__name__} has no argument '{key}'{did_you_mean(key, known)}")


def _callable(on_round: object) -> None:
    if on_round is not None and not callable(on_round):
        what = "a function of a round's record and the number of rounds"
        raise UserError(f"on_round={on_round!r:.80}: give {what}")


def _device(config: RunConfig, group: Group) -> str:
    """The device to train on, which must be there."""
    if not usable(config.device):
        raise UserError(f"no GPU '{config.device}' is usable here; train on device cpu, or see `federec doctor`")
    return group.device(config.device)


def _loop(
    config: RunConfig,
    method: Method,
    split: Split,
    worker: Trainer,
    folder: RunFolder | None,
    point: Checkpoint | None,
    history: list[Line],
    on_round: OnRound | None,
    group: Group,
    tracked: Sequence[Tracker],
) -> Run:
    """Rounds from where `point` stands to the end, and what came out. `tracked`: only in the first process."""
    with tracking(tracked, config, method, folder, history) as logs:
        n_items = split.data.n_items
        budget = budget_of(config, method, n_items, folder, group.first)
        point = play_rounds(
            config, fingerprint(split.data), worker, folder, point, history, logs.on_round(on_round), group, budget
        )
        if point.best_state is None:
            assert folder is not None
            point = bring_back(point, worker, folder, group.device(config.device), group)
        assert point.best_state is not None
        began = time.perf_counter()
        review = worker.review(point.best_state, point.best.round)
        reviewing, data = time.perf_counter() - began, split.data
        described = {
            "name": data.name,
            "users": data.n_users,
            "items": data.n_items,
            "interactions": len(data),
            **reading(data),
            **split.summary(),
            "evaluated_users": int((review.ranks["test sampled"] >= 0).sum()),
            "sha256": data.sha256 or point.data,
        }
        privacy = told_privacy(config, method, n_items, budget)
        result = outcome(config, method, described, worker.engine_choice, point, history, review, reviewing, privacy)
        if folder is not None and group.first:
            examples = examples_of(review.ranks, data)
            folder.write_result(result, review.ranks, html_report(result, history, review.ranks, examples), examples)
        # Without examples a report has nothing of single users
        logs.finish(result, lambda: html_report(result, history, review.ranks))
    return Run(config, method, result, history, point, split.data, review.ranks)
