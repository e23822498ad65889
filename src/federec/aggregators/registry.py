"""All aggregators by name."""

from __future__ import annotations

from federec.aggregators.base import Aggregator
from federec.aggregators.mean import Mean
from federec.aggregators.sum import Sum
from federec.aggregators.touched_mean import TouchedMean
from federec.errors import UserError, did_you_mean

AGGREGATORS: dict[str, type[Aggregator]] = {kind.name: kind for kind in (Mean, Sum, TouchedMean)}


def aggregator_class(name: str) -> type[Aggregator]:
    """The aggregator of that name."""
    if name not in AGGREGATORS:
        raise UserError(f"unknown aggregator '{name}'{did_you_mean(name, AGGREGATORS)}")
    return AGGREGATORS[name]
