import math

import pytest
import torch

from federec.mathematics.spectrum import effective_rank, singular_values


def test_singular_values_are_those_of_the_table():
    table = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(singular_values(table), torch.linalg.svdvals(table.double()))


def test_effective_rank_counts_dimensions_in_use():
    assert effective_rank(torch.ones(5)) == pytest.approx(5)
    assert effective_rank(torch.tensor([3.0, 0.0, 0.0])) == pytest.approx(1)
    halves = 0.5 * math.log(2) + 0.5 * math.log(4)  # shares 1/2, 1/4, 1/4
    assert effective_rank(torch.tensor([2.0, 1.0, 1.0])) == pytest.approx(math.exp(halves))


def test_a_table_that_diverged_has_no_figures():
    values = singular_values(torch.tensor([[1.0, math.inf], [0.0, 1.0]]))
    assert values.isnan().all() and math.isnan(effective_rank(values))
