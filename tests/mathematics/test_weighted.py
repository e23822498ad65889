import pytest
import torch

from federec.mathematics.weighted import weighted_sums


@pytest.mark.parametrize("most", [0, 3, 60])
def test_a_sum_is_that_of_the_rows(most):
    random = torch.Generator().manual_seed(most)
    table, counts = torch.randn(40, 17, generator=random), torch.randint(0, most + 1, (9,), generator=random)
    places = torch.randint(0, 40, (int(counts.sum()),), generator=random)  # some of them twice
    weight = torch.rand(len(places), generator=random)
    parts = zip(places.split(counts.tolist()), weight.split(counts.tolist()), strict=True)
    expected = torch.stack([(w[:, None] * table[p]).sum(0) for p, w in parts])
    torch.testing.assert_close(weighted_sums(counts, places, weight, table), expected, rtol=1e-5, atol=1e-5)


def test_a_user_scores_the_same_whoever_is_scored_beside():
    table, places, weight = torch.randn(40, 33), torch.randint(0, 40, (30,)), torch.rand(30)
    together = weighted_sums(torch.tensor([20, 10]), places, weight, table)
    assert torch.equal(weighted_sums(torch.tensor([10]), places[20:], weight[20:], table), together[1:])
