"""Local-only: PFedRec with federation off. What could a device learn only from its own history?

The item table is private and kept from round to round; nothing is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from federec.cohort.layers import Param
from federec.methods.base import View
from federec.methods.forms import Form, LinearScore
from federec.methods.pfedrec import PFedRec


class LocalOnly(PFedRec):
    """Control: PFedRec on each device by itself, without a server.

    >>> fr.LocalOnly().name
    'local-only'
    """

    name: ClassVar[str] = "local-only"
    paper: ClassVar[str] = "control"
    view: ClassVar[View] = "global"  # its rows outlive the round, so there is nothing tuned beside them

    def shared(self) -> dict[str, Param]:
        return {}

    def fused_form(self, n_items: int) -> Form | None:
        form = super().fused_form(n_items)
        return replace(form, own=True) if isinstance(form, LinearScore) else None

    def private(self) -> dict[str, Param]:
        return {**super().shared(), **super().private()}
