"""Runs that figures are made of. A run is trained once and found again by its configuration."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from federec.methods.presets import RUN_SETTINGS, presets
from federec.reproduction.drawings.base import Request
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.local import resume, run
from federec.runtimes.run import Run


def configured(
    request: Request,
    method: str,
    plugins: tuple[str, ...] = (),
    *,
    protocol: str = "clean",
    preset: bool = True,
    channel: tuple[dict[str, Any], ...] | None = None,
    engine: str = "auto",
    **settings: Any,
) -> RunConfig:
    """The configuration of a run. `preset`: with the method's preset for this data and protocol, where there is one;
    the given settings go over it."""
    name = f"{request.data}-clean" if protocol == "clean" else request.data
    known = presets(method, plugins).get(name, {}) if preset else {}
    of_run = {key: value for key, value in known.items() if key in RUN_SETTINGS}
    of_method = {key: value for key, value in known.items() if key not in RUN_SETTINGS}
    return RunConfig.checked(
        method=method,
        plugins=plugins,
        settings={**of_method, **settings},
        channel=channel,
        engine=engine,
        data=request.data,
        protocol=protocol,
        seed=request.seed,
        **of_run | {"rounds": request.rounds},
    )


def trained(request: Request, method: str, plugins: tuple[str, ...] = (), **given: Any) -> Run:
    """The finished run of a configuration (`configured`), which is trained, continued or loaded."""
    config = configured(request, method, plugins, **given)
    digest = hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
    name = "+".join((method, *plugins))
    folder = RunFolder(request.runs / f"{name}-{digest[:12]}")
    if folder.finished:
        return Run.load(folder.path)
    request.say(f"train  {name} on {config.data}, {config.protocol}, {config.rounds} rounds, seed {config.seed}")
    if folder.started:
        return resume(folder.path)
    return run(config, config.load(), folder)
