"""All plug-ins by name, and building a method from names and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from federec.errors import UserError, did_you_mean, first_fault
from federec.methods.base import Method
from federec.methods.registry import method_class
from federec.plugins.base import Plugin, plug
from federec.plugins.dualper import DualPer
from federec.plugins.ldp import LDP
from federec.plugins.plgc import PLGC
from federec.plugins.recency import Recency
from federec.plugins.sam import SAM

PLUGINS: dict[str, type[Plugin]] = {p.plugin: p for p in (DualPer, SAM, PLGC, LDP, Recency)}


def plugin_class(name: str) -> type[Plugin]:
    """The plug-in of that name."""
    if name not in PLUGINS:
        raise UserError(f"unknown plug-in '{name}'{did_you_mean(name, PLUGINS)}")
    return PLUGINS[name]


def build(name: str, plugins: Iterable[str] = (), settings: Mapping[str, Any] | None = None) -> Method:
    """A method with plug-ins and settings, checked before anything is trained."""
    cls = plug(method_class(name), *(plugin_class(p) for p in plugins))
    settings = settings or {}
    for key in settings:
        if key not in cls.model_fields:
            raise UserError(f"'{name}' has no setting '{key}'{did_you_mean(key, cls.model_fields)}")
    try:
        return cls.model_validate(settings)
    except ValidationError as error:
        setting, why = first_fault(error)
        raise UserError(f"setting {setting} of '{name}': {why}") from None
