"""The search for settings that a paper does not give: Optuna's TPE, on validation only; test items are never used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from federec.data.interactions import Interactions
from federec.errors import UserError, did_you_mean
from federec.files import make_folder
from federec.methods.base import Method
from federec.runs.config import RunConfig
from federec.runtimes.local import run

SPAN = 30.0
"""A setting is searched from its default divided by this to its default times this, on a log scale."""


def searchable(method: Method) -> dict[str, float]:
    """Settings that can be searched, with their defaults: all positive real numbers."""
    values = method.model_dump()
    return {key: value for key, value in values.items() if isinstance(value, float) and value > 0}


def tune(
    config: RunConfig, data: Interactions, over: Sequence[str], trials: int, out: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """The best settings found so far. `out` keeps every trial, so the same call continues where it stopped. Calls that
    differ in data, rounds or searched settings are separate searches."""
    import optuna

    method = config.build()
    defaults = searchable(method)
    for key in over:
        if key not in defaults:
            raise UserError(f"'{method.name}' has no setting '{key}' to search{did_you_mean(key, defaults)}")
    if not defaults:
        raise UserError(f"'{method.name}' has no setting to search: none of its settings is a positive real number")
    space = {key: defaults[key] for key in over or defaults}
    search = config.model_copy(update=data.origin).model_dump_json() + json.dumps(space, sort_keys=True)

    def objective(trial: optuna.Trial) -> float:
        found = {key: trial.suggest_float(key, value / SPAN, value * SPAN, log=True) for key, value in space.items()}
        tried = config.model_copy(update={"settings": {**config.settings, **found}})
        value = float(run(tried, data, None).valid["sampled"]["hr@10"])
        shown = ", ".join(f"{key}={number:.4g}" for key, number in found.items())
        say(f"trial {trial.number + 1}: valid hr@10 {value:.4f} with {shown}")
        return value

    make_folder(out.parent)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=hashlib.sha256(search.encode()).hexdigest(),
        storage=f"sqlite:///{out}",
        direction="maximize",
        load_if_exists=True,
    )
    done = len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)))
    study.sampler = optuna.samplers.TPESampler(seed=config.seed + done)  # the same seed would repeat the same trials
    if not study.trials:
        study.enqueue_trial(space)  # begin with the defaults
    study.optimize(objective, n_trials=max(0, trials - done))
    return dict(study.best_params)
