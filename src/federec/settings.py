"""Typed settings: of methods, plug-ins, stages, aggregators and runs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Every field has a default, a docstring and bounds; unknown names and values that are no numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
