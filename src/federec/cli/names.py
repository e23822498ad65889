"""Names that the shell completes. They are written out, because the registries would import torch at every press of
the tab key; a test compares them."""

from __future__ import annotations

from collections.abc import Callable

METHODS = (
    *("pfedrec", "fedmf", "fedncf", "fedrap", "fedrecon", "fedrecgel", "metamf", "fedpergnn", "fedease", "fednext"),
    *("fednext-projected", "fedals", "fcf", "popularity", "local-only", "negative-count", "ease", "ials", "mf", "ncf"),
    *("lightgcn",),
)
PLUGINS = ("dualper", "plgc", "sam", "ldp", "recency")
SETS = (*("tastes", "ml-100k", "ml-1m", "lastfm-2k", "lastfm-listens", "amazon-video", "amazon-video-10", "filmtrust"),)


def one_of(*names: str) -> Callable[[str], list[str]]:
    """What completes the beginning of one of these names."""

    def complete(incomplete: str) -> list[str]:  # typer goes by the name of the parameter
        return [name for name in names if name.startswith(incomplete)]

    return complete
