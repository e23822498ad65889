"""The search for settings that a paper does not give: Optuna's TPE, on validation only; test items are never used."""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any, Never, Self

from federec.data.describe import remarks
from federec.data.interactions import Interactions
from federec.data.sets import Loadable, load
from federec.errors import UserError, did_you_mean, needs, several, whole
from federec.evaluation.metrics import metric_of
from federec.evaluation.protocols import protocol
from federec.files import as_path, make_folder
from federec.methods.base import Method
from federec.methods.presets import RUN_SETTINGS
from federec.plugins.registry import Plugins, build, with_plugins
from federec.reporting.frames import Frame, frame
from federec.reporting.live import live
from federec.runs.config import RunConfig, fewer_rounds
from federec.runtimes.local import refuse_unknown, run
from federec.stages.registry import Channel
from federec.stages.registry import channel as plain_channel

SPAN = 30.0
"""A setting is searched from its default divided by this to its default times this, on a log scale."""

Say = Callable[[str], None]

Over = Sequence[str] | Mapping[str, Sequence[Any]]
"""Names of settings to search; or with a range `(low, high)` or a list of choices for each."""


@dataclass
class Tuned:
    """What `fr.tune` found.

    >>> found = fr.tune("fedmf", data, over=["lr"], trials=1, rounds=1)
    >>> found.best
    {'lr': 0.1}
    >>> found.method.lr
    0.1
    """

    best: dict[str, Any]
    """The settings of the best trial."""
    value: float
    """Its value on validation."""
    metric: str
    """What was maximised on validation, such as `full.ndcg@10`."""
    method: Method
    """The method with the best settings: `fr.train(found.method, data)`."""
    tried: list[dict[str, Any]] = field(repr=False)
    """Every finished trial: its settings and its value."""

    @property
    def trials(self) -> Frame:
        """A frame with a row for each trial: its number, the value on validation, the settings.

        >>> fr.tune("fedmf", data, over={"dim": [8, 16]}, trials=2, rounds=1).trials.shape
        (2, 3)
        """
        return frame({key: [trial[key] for trial in self.tried] for key in self.tried[0]})

    def _repr_html_(self) -> str:
        value = f"valid {self.metric}"
        ordered = sorted(self.tried, key=lambda trial: trial[value], reverse=True)
        head = "".join(f"<th>{escape(key)}</th>" for key in self.tried[0])
        rows = ("".join(f"<td>{escape(_shown(cell))}</td>" for cell in trial.values()) for trial in ordered)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        caption = f"{self.method.name}: {len(ordered)} trials, the best on validation first"
        return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def tune(
    method: Method | type[Method] | str,
    data: Loadable,
    *,
    over: Over = (),
    trials: int = 20,
    rounds: int | None = None,
    protocol: str = "clean",
    seed: int = 0,
    split: str | None = None,
    participation: float | None = None,
    evaluate_users: int | None = None,
    select: str | None = None,
    patience: int | None = None,
    plugins: Plugins = (),
    device: str = "cpu",
    channel: Channel = (),
    aggregator: str | None = None,
    out: str | Path | None = None,
    say: Say | None = None,
    progress: bool | None = None,
    **unknown: Never,
) -> Tuned:
    """Search settings on validation; test items are never looked at. Needs the extra `results`.

    `over` names the settings: by default all that are positive real numbers, from a thirtieth to thirty times their
    value. A mapping gives a range `(low, high)` or a list of choices for each. The first trial has the method's own
    settings. A mapping may have `participation` and `rounds` too. `select` is the metric on validation, by default the
    protocol's own. `out` is a file that keeps all trials: the same call then continues where it stopped. `say` is given
    a line about each trial. The other arguments are those of `fr.train`.

    >>> found = fr.tune(fr.FedMF(dim=8), data, over={"lr": (0.01, 1.0)}, trials=2, rounds=1)
    >>> run = fr.train(found.method, data, rounds=1)
    """
    refuse_unknown(tune, unknown, method)
    data = load(data)
    method = with_plugins(method if isinstance(method, Method) else build(method), plugins)
    given: dict[str, Any] = {"rounds": rounds, "protocol": protocol, "seed": seed, "participation": participation}
    given |= {"split": split, "evaluate_users": evaluate_users, "select": select, "patience": patience}
    # None, as on the command line: both then go on with the same search.
    given |= {"device": device, "channel": plain_channel(channel) or None, "aggregator": aggregator}
    config = RunConfig.of(method, data, **given)
    for sentence in (*fewer_rounds(config, rounds), *remarks(data, in_python=True)):
        warnings.warn(sentence, stacklevel=2)
    return search(config, data, over, trials, None if out is None else as_path(out), say, method, progress)


def searchable(method: Method) -> dict[str, float]:
    """Settings that can be searched, with their defaults: all positive real numbers."""
    values = method.model_dump()
    return {key: value for key, value in values.items() if isinstance(value, float) and value > 0}


def search(
    config: RunConfig,
    data: Interactions,
    over: Over,
    trials: int,
    out: Path | None,
    say: Say | None,
    method: Method | None = None,
    progress: bool | None = False,
) -> Tuned:
    """The best settings found so far. `out` keeps every trial, so the same call continues where it stopped. Calls that
    differ in data, rounds or searched settings are separate searches. `method` is the one that the configuration
    describes, found by its reference if not given. Each trial is told to `say`, or logged if that is not given.
    `progress`: a live line, by default in notebooks and on terminals."""
    optuna, trials = needs("optuna"), whole(trials, "trials")
    method = build(config.method, config.plugins, config.settings) if method is None else method
    ranking, name = metric_of(config.select or protocol(config.protocol).select)
    space, told = space_of(method, config, over), say or logging.getLogger("federec").info
    asked = {key: [ends.low, ends.high, ends.choices] for key, ends in space.items()}
    key = config.model_copy(update=data.origin).model_dump_json() + json.dumps(asked, sort_keys=True, default=str)

    def value_of(trial: Any) -> float:
        found = trial.params
        trying, tried = configured(config, method, found)
        with interrupts.allowed():
            outcome = run(trying, data, None, on_round, method=tried)
        value = float(outcome.valid[ranking][name])
        shown = ", ".join(f"{key}={_shown(value)}" for key, value in found.items())
        told(f"trial {trial.number + 1}: valid {ranking} {name} {value:.4f} with {shown}")
        return value

    if out is not None:
        make_folder(out.parent)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns, with a traceback, of a trial that Ctrl-C stops
    study = optuna.create_study(
        study_name=hashlib.sha256(key.encode()).hexdigest(),
        storage=None if out is None else f"sqlite:///{out}",
        direction="maximize",
        load_if_exists=True,
    )
    done = len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)))
    study.sampler = optuna.samplers.TPESampler(seed=config.seed + done)  # the same seed would repeat the same trials
    if not study.trials:
        study.enqueue_trial({key: ends.start for key, ends in space.items() if ends.start is not None})
    shown = live(progress, before=lambda: f"trial {len(study.trials)}/{trials}  ")
    with shown as on_round, _Interrupts() as interrupts:
        for _ in range(trials - done):
            trial = study.ask({key: ends.distribution() for key, ends in space.items()})
            try:
                study.tell(trial, value_of(trial))
            except BaseException:
                study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
                raise
    finished = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    tried = [{"trial": each.number + 1, f"valid {ranking}.{name}": each.value, **each.params} for each in finished]
    best = dict(study.best_params)
    return Tuned(best, float(study.best_value), f"{ranking}.{name}", configured(config, method, best)[1], tried)


def configured(config: RunConfig, method: Method, found: Mapping[str, Any]) -> tuple[RunConfig, Method]:
    """The run with these settings, and its method."""
    tried = type(method)(**dict(method) | {key: value for key, value in found.items() if key not in RUN_SETTINGS})
    of_run = {key: value for key, value in found.items() if key in RUN_SETTINGS}
    settings = config.settings | tried.model_dump(mode="json")
    return config.model_copy(update={"settings": settings, **of_run}), tried


class _Interrupts:
    """Ctrl-C stops a trial at once, but not the storing of one, which a database answers with errors of its own: there
    it waits for the next trial."""

    def __enter__(self) -> Self:
        self._training = self._asked = False
        # Only the main thread may handle signals, and a handler that somebody else has set stays.
        main = threading.current_thread() is threading.main_thread()
        self._handles = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._handles:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if self._training:
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """While a trial is trained."""
        self._training = True
        try:
            if self._asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._training = False

    def __exit__(self, *error: object) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Ends:
    """Where a setting is searched: between `low` and `high` on a log scale, or among choices."""

    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    start: Any = None
    """What the first trial tries: the method's own setting, if it is inside."""

    def __contains__(self, value: Any) -> bool:
        return value in self.choices if self.choices else self.low <= value <= self.high

    def distribution(self) -> Any:
        """What Optuna draws from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=True)
        return FloatDistribution(self.low, self.high, log=True)


def space_of(method: Method, config: RunConfig, over: Over) -> dict[str, Ends]:
    """What is searched, by the name of the setting. What the method refuses is refused before the first trial."""
    defaults = searchable(method)
    if isinstance(over, Mapping):
        fields = (*type(method).model_fields, *RUN_SETTINGS)
        for key in over:
            if key not in fields:
                raise UserError(f"'{method.name}' has no setting '{key}'{did_you_mean(str(key), fields)}")
        owner = {key: config if key in RUN_SETTINGS else method for key in over}
        found = {key: _ends(key, asked, getattr(owner[key], key)) for key, asked in over.items()}
        for key, ends in found.items():
            for value in ends.choices or (ends.low, ends.high):
                if key in RUN_SETTINGS:
                    RunConfig.checked(method, **config.model_dump() | {key: value})
                else:
                    _with(method, key, value)
        return found
    keys = several(over, "over", "name settings, such as ['lr'], or give ranges, such as {'lr': (0.01, 1.0)}", str)
    for key in keys:
        if key not in defaults:
            raise UserError(f"'{method.name}' has no setting '{key}' to search{did_you_mean(str(key), defaults)}")
    if not defaults:
        raise UserError(f"'{method.name}' has no setting to search: none of its settings is a positive real number")
    return {key: around(method, key, defaults[key]) for key in keys or defaults}


def _with(method: Method, key: str, value: Any) -> Method:
    """The method with another value of one setting."""
    return type(method)(**dict(method) | {key: value})


def around(method: Method, key: str, own: float) -> Ends:
    """The ends of a setting that is only named. A fraction ends at 1."""
    for high in (own * SPAN, 1.0):
        try:
            _with(method, key, high)
        except UserError:
            continue
        return Ends(own / SPAN, high, start=own)
    return Ends(own / SPAN, own, start=own)


def _ends(key: str, asked: Sequence[Any], own: Any) -> Ends:
    """The ends of a setting that is given as a range or as choices; `own` is the method's own value."""
    if isinstance(asked, list) and asked:
        return Ends(choices=tuple(asked), start=own if own in asked else None)
    match asked:
        case (int() | float() as low, int() | float() as high) if isinstance(asked, tuple) and 0 < low < high:
            inside = isinstance(own, int | float) and low <= own <= high
            return Ends(low, high, start=own if inside else None)
    raise UserError(f"over: {key}={asked!r} is neither a range (low, high) with 0 < low < high nor a list of choices")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
