"""federec's own methods by name, and the class of any other by its reference. Plug-ins have a registry of their own."""

from __future__ import annotations

from collections.abc import Iterable

from federec.methods.base import Method
from federec.methods.ease import EASE
from federec.methods.fcf import FCF
from federec.methods.fedals import FedALS
from federec.methods.fedease import FedEASE
from federec.methods.fedmf import FedMF
from federec.methods.fedncf import FedNCF
from federec.methods.fednext import FedNext
from federec.methods.fednext_projected import FedNextProjected
from federec.methods.fedpergnn import FedPerGNN
from federec.methods.fedrap import FedRAP
from federec.methods.fedrecgel import FedRecGEL
from federec.methods.fedrecon import FedRecon
from federec.methods.fedsasrec import FedSASRec
from federec.methods.ials import IALS
from federec.methods.lightgcn import LightGCN
from federec.methods.local_only import LocalOnly
from federec.methods.metamf import MetaMF
from federec.methods.mf import MF
from federec.methods.ncf import NCF
from federec.methods.negative_count import NegativeCount
from federec.methods.pfedrec import PFedRec
from federec.methods.popularity import Popularity
from federec.methods.references import Kind
from federec.methods.sasrec import SASRec

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        *(PFedRec, FedMF, FedNCF, FedRAP, FedRecon, FedRecGEL, MetaMF, FedPerGNN),
        *(FedEASE, FedNext, FedNextProjected, FedALS, FCF, FedSASRec),
        *(Popularity, LocalOnly, NegativeCount, EASE, IALS, MF, NCF, LightGCN, SASRec),
    )
}


METHOD = Kind("method", Method, "federec.DeviceMethod", ("federec.methods",), METHODS)


def method_class(reference: str | type[Method]) -> type[Method]:
    """The method that a reference names: a name, `path/to/mine.py:Mine` or `package.module:Mine`."""
    return METHOD.find(reference)


def trusted_method(reference: str, sha256: str | None = None, own: Iterable[str] | None = None) -> str:
    """The reference that a device follows when a server asks for that method; see `Kind.trusted`."""
    return METHOD.trusted(reference, sha256, own)
