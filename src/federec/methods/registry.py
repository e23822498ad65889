"""federec's own methods by name, and the class of any other by its reference. Plug-ins have a registry of their own."""

from __future__ import annotations

from collections.abc import Iterable

from federec.lazy import Registry
from federec.methods.base import Method
from federec.methods.references import Kind

METHODS: Registry[type[Method]] = Registry(
    "federec.methods",
    {
        "pfedrec": "PFedRec",
        "fedmf": "FedMF",
        "fedncf": "FedNCF",
        "fedrap": "FedRAP",
        "fedrecon": "FedRecon",
        "fedrecgel": "FedRecGEL",
        "metamf": "MetaMF",
        "fedpergnn": "FedPerGNN",
        "fedease": "FedEASE",
        "fednext": "FedNext",
        "fednext-projected": "FedNextProjected",
        "fedals": "FedALS",
        "fcf": "FCF",
        "fedsasrec": "FedSASRec",
        "popularity": "Popularity",
        "local-only": "LocalOnly",
        "negative-count": "NegativeCount",
        "ease": "EASE",
        "ials": "IALS",
        "mf": "MF",
        "ncf": "NCF",
        "lightgcn": "LightGCN",
        "sasrec": "SASRec",
    },
)


METHOD = Kind("method", Method, "federec.DeviceMethod", ("federec.methods",), METHODS)


def method_class(reference: str | type[Method]) -> type[Method]:
    """The method that a reference names: a name, `path/to/mine.py:Mine` or `package.module:Mine`."""
    return METHOD.find(reference)


def trusted_method(reference: str, sha256: str | None = None, own: Iterable[str] | None = None) -> str:
    """The reference that a device follows when a server asks for that method; see `Kind.trusted`."""
    return METHOD.trusted(reference, sha256, own)
