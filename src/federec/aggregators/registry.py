"""All aggregators by name, and making one from a text such as `trimmed-mean:fraction=0.2`."""

from __future__ import annotations

from federec.aggregators.base import Aggregator, AggregatorSettings
from federec.aggregators.foolsgold import FoolsGold
from federec.aggregators.geometric_median import GeometricMedian
from federec.aggregators.item_clip import ItemClip
from federec.aggregators.krum import Krum, MultiKrum
from federec.aggregators.mean import Mean
from federec.aggregators.median import Median
from federec.aggregators.norm_bound import NormBound
from federec.aggregators.participants import Participants
from federec.aggregators.sum import Sum
from federec.aggregators.touched_mean import TouchedMean
from federec.aggregators.trimmed_mean import TrimmedMean
from federec.errors import UserError, did_you_mean
from federec.settings import parsed

AGGREGATORS: dict[str, type[Aggregator]] = {
    kind.name: kind
    for kind in (
        *(Mean, Sum, TouchedMean, Median, TrimmedMean, Krum, MultiKrum, GeometricMedian, NormBound, ItemClip),
        *(Participants, FoolsGold),
    )
}


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
