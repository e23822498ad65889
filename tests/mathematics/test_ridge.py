import pytest
import torch

from federec.mathematics.ridge import block_ridge, inverse


def positive(n, seed=0):
    x = torch.randn(2 * n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.T @ x + torch.eye(n)


@pytest.mark.parametrize("n", [1, 7, 512, 700])
def test_an_inverse_is_found_in_the_memory_of_the_matrix(n):
    matrix = positive(n)
    given = matrix.clone()
    found = inverse(given)
    assert found.data_ptr() == given.data_ptr()
    torch.testing.assert_close(found @ matrix, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-9)
    assert torch.equal(found, found.T)


def test_a_matrix_may_lie_column_by_column_in_memory():
    matrix = positive(20)
    torch.testing.assert_close(inverse(matrix.clone().T) @ matrix, torch.eye(20, dtype=torch.float64))


def test_what_is_not_positive_definite_has_none():
    matrix = positive(5)
    matrix[3, 3] = -1
    with pytest.raises(torch.linalg.LinAlgError):
        inverse(matrix)
    with pytest.raises(torch.linalg.LinAlgError):
        inverse(torch.full((3, 3), torch.nan, dtype=torch.float64))


def test_a_system_of_blocks_is_that_of_the_whole_matrix():
    system, targets = positive(12).float(), [torch.randn(6, 4), torch.randn(6, 4)]
    blocks = {(a, b): system[6 * a : 6 * a + 6, 6 * b : 6 * b + 6] for a, b in ((0, 0), (0, 1), (1, 1))}
    whole = system.double() + torch.diag(torch.tensor([2.0] * 6 + [5.0] * 6).double())
    expected = torch.linalg.solve(whole, torch.cat(targets).double()).float()
    torch.testing.assert_close(block_ridge(blocks, targets, [2.0, 5.0]).flatten(0, 1), expected)


def test_too_much_noise_in_a_system_of_blocks_gives_no_numbers():
    found = block_ridge({(0, 0): -torch.eye(3)}, [torch.ones(3, 2)], [0.5])
    assert found.shape == (1, 3, 2) and found.isnan().all()
