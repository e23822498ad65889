"""All aggregators by name, and making one from a text such as `trimmed-mean:fraction=0.2`."""

from __future__ import annotations

from federec.aggregators.base import Aggregator, AggregatorSettings
from federec.errors import UserError, did_you_mean
from federec.lazy import Registry
from federec.settings import parsed

AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "federec.aggregators",
    {
        "mean": "Mean",
        "sum": "Sum",
        "touched-mean": "TouchedMean",
        "median": "Median",
        "trimmed-mean": "TrimmedMean",
        "krum": "Krum",
        "multi-krum": "krum:MultiKrum",
        "geometric-median": "GeometricMedian",
        "norm-bound": "NormBound",
        "item-clip": "ItemClip",
        "participants": "Participants",
        "foolsgold": "FoolsGold",
    },
)


def aggregator_class(name: str) -> type[Aggregator]:
    """The aggregator of that name."""
    if name not in AGGREGATORS:
        raise UserError(f"unknown aggregator '{name}'{did_you_mean(name, AGGREGATORS)}")
    return AGGREGATORS[name]


def parse_aggregator(text: str) -> tuple[type[Aggregator], AggregatorSettings | None]:
    """The aggregator that a text names, and its settings if it has any: `mean`, `trimmed-mean:fraction=0.2`."""
    name, values = parsed(text, "aggregator")
    kind = aggregator_class(name)
    if kind.options is None:
        for key in values:
            raise UserError(f"aggregator '{name}' has no setting '{key}'; it has none")
        return kind, None
    return kind, kind.options(**values)
