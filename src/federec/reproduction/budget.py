"""One budget of tuning for every method: the same number of trials, the same sampler, the same rule of what to search.

Trials have a seed of their own, so that no reported run has been looked at, and are judged by NDCG@10 against all items
on validation. A trial that is behind the median of the earlier ones, after the same part of its rounds, is stopped.
Methods in closed form try as many settings, one a round. The size of a model is not searched: it decides what devices
send.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from federec.data.interactions import Interactions
from federec.errors import needs
from federec.methods.base import DeviceMethod, Method
from federec.reproduction.cells import Cell, Row
from federec.reproduction.records import Line
from federec.reproduction.tune import Ends, around, configured, searchable, space_of
from federec.runs.config import RunConfig
from federec.runtimes.local import run

TRIALS = 24
SEED = 100
"""Of all trials; reported runs have the seeds 0, 1, ..."""
_PARTS = 20
"""Into so many parts the rounds of a trial are divided when trials are compared on the way."""

FIXED = (
    "laplace",
    "clip",
    "tolerance",
    "scale",
    "local_lr",
    "floor",
    "least",
    "step_decay",
    "round_decay",
    "smoothing",
)
"""Real settings that are not searched, unless a known value differs: noise for privacy, starting values, when to stop,
how much an old item keeps, how a rate falls."""

GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "ease": {"l2": [round(10 * 2000 ** (i / 23), 1) for i in range(24)]},
    "fedease": {"l2": [10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0], "recency": [3.0, 10.0], "window": [0.0, 100.0]},
    "fednext": {
        "half_lives": [[1.0, 8.0, 0.0], [2.0, 16.0, 0.0]],
        "l2": [30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0],
        "blend": [0.0, 1.0],
    },
}
"""What methods in closed form try, a setting a round."""


def grid_of(method: str, ordered: bool) -> Mapping[str, Sequence[Any]]:
    """What a method in closed form tries; nothing for others. Without times, FedEASE is EASE from sums."""
    return GRIDS.get("ease" if method == "fedease" and not ordered else method, {})


def known(method: str, n_items: int) -> dict[str, Any]:
    """Settings that earlier searches found on ML-100K, for FedMF and for the papers' methods: their second trial. Rates
    of item tables grow with the number of items. PFedRec begins as FedMF does, whose model differs only in its bias:
    those of its own had been chosen among 99 items, and ranked worse among all."""
    factorised = {"lr": 0.014, "item_lr_factor": 950.0, "negatives": 8, "epochs": 5}
    found: dict[str, dict[str, Any]] = {
        "fedmf": factorised,
        "pfedrec": factorised,
        "fedrap": {
            "lr": 0.1,
            "item_lr": 8.0 * n_items,
            "own_lr_factor": 0.001,
            "batch": 256,
            "epochs": 1,
            "round_decay": 1.0,
            "step_decay": 1.0,
        },
        "fedrecgel": {"server_lr": 0.01},
    }
    return found.get(method, {})


def space(method: Method, hint: Mapping[str, Any]) -> dict[str, Any]:
    """What is searched. Real settings: from a thirtieth to thirty times their value, further where a known value is
    outside; negatives, passes, the size of a batch and the fraction of devices in a round where samples are drawn."""
    found: dict[str, Any] = {}
    for key, own in searchable(method).items():
        if key not in FIXED:
            ends, value = around(method, key, own), hint.get(key, own)
            found[key] = min(ends.low, value / 3), max(ends.high, value * 3 if value > ends.high else 0)
        elif hint.get(key, own) != own:
            found[key] = [own, hint[key]]
    on_devices = isinstance(method, DeviceMethod)
    if getattr(method, "negatives", 0):
        found["negatives"] = (1, 16)
    if getattr(method, "negatives" if on_devices else "batch", 0):
        batch: int = method.batch  # type: ignore[attr-defined]
        found["batch"] = (max(1, min(batch // 4, hint.get("batch", batch))), 8 * batch)
    if isinstance(method, DeviceMethod) and method.negatives:
        found |= {"epochs": (1, max(5, method.epochs)), "participation": [0.1, 1.0]}
    return found


@dataclass(frozen=True)
class Search:
    """What is tried for a row on a data set."""

    config: RunConfig
    grid: Mapping[str, Sequence[Any]]
    """Of a method in closed form."""
    ends: Mapping[str, Ends]
    """Of all others."""
    hint: Mapping[str, Any]
    rounds: int | None
    """Of each trial, where they are not those of the method."""

    @classmethod
    def of(cls, row: Row, name: str, data: Interactions, rounds: int | None, device: str = "cpu") -> Search:
        """The search for the settings of a row on a data set of this name."""
        grid = grid_of(row.method, ordered=data.times is not None)
        config = Cell(row, name, "tuned", SEED, rounds).config(grid, device)
        hint = known(row.method, data.n_items)
        over = {} if grid else space(config.build(), hint)
        return cls(config, grid, space_of(config.build(), config, over) if over else {}, hint, rounds)

    @property
    def space(self) -> dict[str, Any]:
        """As records have it."""
        ends = {k: list(e.choices) if e.choices else {"from": e.low, "to": e.high} for k, e in self.ends.items()}
        return {**self.grid, **ends}

    def is_answered(self, line: Line, trials: int) -> bool:
        """Whether a finished search is this one, with at least as many trials."""
        enough = line["trials"] >= trials or not self.ends
        return enough and line["space"] == self.space and line.get("rounds") == self.rounds

    def includes(self, line: Line) -> bool:
        """Whether a trial may be one of this search."""
        params = line["params"]
        inside = params.keys() == self.ends.keys() and all(params[k] in ends for k, ends in self.ends.items())
        return inside and line.get("rounds") == self.rounds

    def lines(self, data: Interactions, before: Sequence[Line], trials: int) -> Iterator[Line]:
        """A line for each trial that is not among those `before`, and at the end one with what was found."""
        if not self.ends:
            found = _rounds(self, data)
        else:
            found = _trials(self, data, [line for line in before if self.includes(line)], trials)
        for line in found:
            yield {"rounds": self.rounds, **line}


def _rounds(search: Search, data: Interactions) -> Iterator[Line]:
    """The search of a method that tries the settings of a grid as rounds, or has nothing to search."""
    outcome = run(search.config, data, None, brief=True)
    yield {
        "line": "search",
        "trials": outcome.result["rounds"] if search.grid else 0,
        "pruned": 0,
        "start": None,
        "value": outcome.valid["full"]["ndcg@10"],
        "best": outcome.method.tried(outcome.result["best_round"]),
        "space": search.space,
    }


def _trials(search: Search, data: Interactions, before: Sequence[Line], trials: int) -> Iterator[Line]:
    """The search of all other methods."""
    optuna, config, ends = needs("optuna"), search.config, search.ends
    method, states = config.build(), optuna.trial.TrialState
    distributions = {key: each.distribution() for key, each in ends.items()}
    study = _study(optuna, distributions, before)
    own = {key: each.start for key, each in ends.items() if each.start is not None}
    known_too = own | {key: value for key, value in search.hint.items() if key in ends}
    for start in [own, *([known_too] if search.hint else [])]:
        if not any(start.items() <= line["params"].items() for line in before):
            study.enqueue_trial(start)
    for _ in range(trials - len(before)):
        trial, steps = study.ask(distributions), dict[int, float]()
        trying, tried = configured(config, method, trial.params)

        def on_round(line: Line, total: int, trial: Any = trial, steps: dict[int, float] = steps) -> None:
            part = math.ceil(_PARTS * line["round"] / total)
            if "valid_full" in line and part not in steps:
                steps[part] = line["valid_full"]["ndcg@10"]
                trial.report(steps[part], part)
                if trial.should_prune():
                    raise optuna.TrialPruned

        try:
            outcome = run(trying, data, None, on_round, method=tried, brief=True)
            value, pruned = float(outcome.valid["full"]["ndcg@10"]), False
            study.tell(trial, value)
        except optuna.TrialPruned:
            value, pruned = max(steps.values()), True
            study.tell(trial, state=states.PRUNED)
        yield {"line": "trial", "params": trial.params, "value": value, "pruned": pruned, "steps": steps}
    finished, pruned = (study.get_trials(states=(state,)) for state in (states.COMPLETE, states.PRUNED))
    yield {
        "line": "search",
        "trials": len(finished) + len(pruned),
        "pruned": len(pruned),
        "value": study.best_value,
        "start": next((trial.value for trial in finished if own.items() <= trial.params.items()), None),
        "best": _rounded(study.best_params),
        "space": search.space,
    }


def _study(optuna: Any, distributions: Mapping[str, Any], before: Sequence[Line]) -> Any:
    """A study that knows the trials that were made already."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=SEED + len(before)),  # the same seed would repeat the same trials
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=3),
    )
    for line in before:
        states = optuna.trial.TrialState
        study.add_trial(
            optuna.trial.create_trial(
                state=states.PRUNED if line["pruned"] else states.COMPLETE,
                value=None if line["pruned"] else line["value"],
                params=line["params"],
                distributions=distributions,
                intermediate_values={int(step): value for step, value in line["steps"].items()},
            )
        )
    return study


def _rounded(best: Mapping[str, Any]) -> dict[str, Any]:
    """With four digits, which are more than a search can tell apart."""
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in best.items()}
