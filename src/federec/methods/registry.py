"""All methods by name. Plug-ins have a registry of their own."""

from __future__ import annotations

from federec.errors import UserError, did_you_mean
from federec.methods.base import Method
from federec.methods.ease import EASE
from federec.methods.fcf import FCF
from federec.methods.fedals import FedALS
from federec.methods.fedease import FedEASE
from federec.methods.fedmf import FedMF
from federec.methods.fedncf import FedNCF
from federec.methods.fedpergnn import FedPerGNN
from federec.methods.fedrap import FedRAP
from federec.methods.fedrecgel import FedRecGEL
from federec.methods.fedrecon import FedRecon
from federec.methods.ials import IALS
from federec.methods.lightgcn import LightGCN
from federec.methods.local_only import LocalOnly
from federec.methods.metamf import MetaMF
from federec.methods.mf import MF
from federec.methods.ncf import NCF
from federec.methods.negative_count import NegativeCount
from federec.methods.pfedrec import PFedRec
from federec.methods.popularity import Popularity

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        *(PFedRec, FedMF, FedNCF, FedRAP, FedRecon, FedRecGEL, MetaMF, FedPerGNN),
        *(FedEASE, FedALS, FCF),
        *(Popularity, LocalOnly, NegativeCount, EASE, IALS, MF, NCF, LightGCN),
    )
}


def method_class(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    return METHODS[name]
