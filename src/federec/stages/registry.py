"""All stages by name, and building a channel's stages from plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from federec.errors import UserError, did_you_mean, several
from federec.lazy import Registry
from federec.settings import Part, named
from federec.stages.base import Stage

STAGES: Registry[type[Stage]] = Registry(
    "federec.stages",
    {
        "clip": "Clip",
        "laplace": "Laplace",
        "gaussian": "Gaussian",
        "central-noise": "CentralNoise",
        "distributed-noise": "DistributedNoise",
        "dense": "Dense",
        "top-rows": "TopRows",
        "quantise": "Quantise",
        "secure-sum": "SecureSum",
    },
)

Given = str | Mapping[str, Any] | Stage | type[Stage]
"""A stage as users give it: a text as on the command line, plain values, an object, or a class for its defaults."""
Channel = Given | Iterable[Given]
_REMEDY = "give stages, such as [fr.Clip(norm=1.0)] or ['clip:norm=1']"

KEY = "stage"
"""Where a stage's plain values have its name."""


def stage(values: Mapping[str, Any]) -> Stage:
    """A stage from plain values: `{"stage": "clip", "norm": 1.0}`."""
    settings = {str(key): value for key, value in values.items()}
    name = str(settings.pop(KEY, ""))
    if name not in STAGES:
        raise UserError(f"unknown stage '{name}'{did_you_mean(name, STAGES)}")
    return STAGES[name](**settings)


def plain(stage: Stage) -> dict[str, Any]:
    """The plain values that a stage is made from."""
    return {KEY: stage.name, **stage.model_dump(mode="json", exclude=stage.silent())}


def channel(given: Channel) -> tuple[dict[str, Any], ...]:
    """Plain values of one or several stages, however they are given."""
    stages = several(given, "channel", _REMEDY, (str, Mapping, type, Part))
    return tuple(map(as_plain, stages))


def as_plain(given: object) -> dict[str, Any]:
    """Plain values of a stage, however it is given."""
    if isinstance(given, type) and issubclass(given, Stage):
        return plain(given())
    if isinstance(given, Stage):
        return plain(given)
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str):
        raise UserError(f"{given!r:.80} is no stage; {_REMEDY}")
    return parse([given])[0]


def parse(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Plain values of stages written as on the command line: `dense`, `clip:norm=1`, `quantise:bits=16`."""
    import yaml

    found = []
    for text in texts:
        name, settings = named(text, "stage")
        found.append({KEY: name} | {key: yaml.safe_load(value) for key, value in settings.items()})
    return found
