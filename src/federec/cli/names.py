"""Names that the shell completes. They are written out, because the registries would import torch at every press of
the tab key; a test compares them."""

from __future__ import annotations

from collections.abc import Callable

METHODS = (
    *("pfedrec", "fedmf", "fedncf", "fedrap", "fedrecon", "fedrecgel", "metamf", "fedpergnn", "fedease", "fednext"),
    *("fednext-projected", "fedals", "fcf", "fedsasrec", "popularity", "local-only", "negative-count"),
    *("ease", "ials", "mf", "ncf", "lightgcn", "sasrec"),
)
PLUGINS = ("dualper", "plgc", "sam", "ldp", "recency")
SETS = (
    *("tastes", "ml-100k", "ml-1m", "lastfm-2k", "lastfm-2k-tags", "lastfm-listens", "amazon-video", "amazon-video-10"),
    "filmtrust",
)

STAGES = (
    *("clip", "laplace", "gaussian", "central-noise", "distributed-noise", "dense", "top-rows", "quantise"),
    "secure-sum",
)
AGGREGATORS = (
    *("mean", "sum", "touched-mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "norm-bound"),
    *("item-clip", "participants", "foolsgold"),
)
ATTACKS = ("random", "label-flip", "promote", "pipattack", "fedrecattack", "fedattack", "clusterattack")
AUDITS = ("rows", "size", "sum", "direction", "difference", "shadow")
TRACKERS = ("tensorboard", "mlflow")
FORMATS = ("onnx", "safetensors", "web")
PRECISIONS = ("float32", "float16", "int8")
TABLES = (
    "all",
    "tuned",
    "pfedrec-table2",
    "pfedrec-table3",
    "pfedrec-table4",
    "fedrap",
    "plgc",
    "fedrecgel",
    "summary",
    "figures",
)
FIGURES = (
    *("leak", "loss-surface", "convergence", "item-views", "embeddings", "additive-embeddings", "radii", "dimensions"),
    *("sparsity", "rankings", "bytes", "privacy"),
)
METRICS = tuple(
    f"{ranking}.{name}@{k}"
    for ranking in ("full", "sampled")
    for name in ("ndcg", "hr", "mrr", "recall", "precision", "map")
    for k in (10, 5, 20)
)
PRESETS = (
    *("clean", "recency", "ml-1m", "ml-100k-clean", "ml-1m-clean", "lastfm-2k-clean", "lastfm-listens-clean"),
    *("amazon-video-clean", "amazon-video-10-clean", "filmtrust-clean", "lastfm-2k-tags"),
)


def one_of(*names: str) -> Callable[[str], list[str]]:
    """What completes the beginning of one of these names."""

    def complete(incomplete: str) -> list[str]:  # typer goes by the name of the parameter
        return [name for name in names if name.startswith(incomplete)]

    return complete
