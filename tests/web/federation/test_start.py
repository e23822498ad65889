"""Where private parameters start: a tab draws what torch draws."""

import pytest
import torch
from tests.web.node import needs_node

import federec as fr
from federec.federation.state import State

pytestmark = needs_node
SEEDS = (0, 1, 42, 2**31 + 7, 2**40 + 3)  # torch takes 32 bits of a seed
SIZES = ((1, 1), (3, 5), (4, 4), (2, 9), (39, 16), (40, 16), (57, 7), (300, 32), (1682, 33))
"""Items and dim. Torch draws fewer than 16 normal numbers otherwise, and the last 16 again where 16 is no divisor;
39 * 16 numbers are all of one state of the generator."""


@pytest.mark.parametrize("method", [fr.PFedRec, fr.FedMF])
def test_a_tab_starts_where_torch_does(console, method):
    cases = [(seed, items, dim) for seed in SEEDS for items, dim in SIZES]
    found = console(
        "return cases.map(([seed, items, dim]) => start.startOf(BigInt(seed), items, dim, bias));",
        cases=[(str(seed), items, dim) for seed, items, dim in cases],
        bias=method is fr.PFedRec,
    )
    for (seed, items, dim), ours in zip(cases, found, strict=True):
        private = State.start(method(dim=dim), items, 1, seed).private
        theirs = torch.cat([value[0].flatten() for value in private.values()]).tolist()
        assert ours == theirs, (seed, items, dim)  # exactly
