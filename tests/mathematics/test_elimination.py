import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, diags_array

from federec.mathematics import ridge
from federec.mathematics.elimination import eliminate, independent


def sparse_system(n_items, width, seed, density=0.01):
    """A positive definite system and its targets, of items that meet with this chance."""
    random = np.random.default_rng(seed)
    having = random.random((2 * n_items, n_items, 1)) < density
    x = (having * random.random((2 * n_items, n_items, width))).reshape(2 * n_items, -1)
    return csr_array(x.T @ x + np.eye(n_items * width)), csr_array(x.T @ (random.random((2 * n_items, 7)) < density))


@pytest.mark.parametrize("width", [1, 3])
def test_the_solution_is_that_of_the_whole_system(width):
    system, target = sparse_system(150, width, seed=width)
    left = eliminate(system, target, width)
    assert len(left.levels) > 1 and 0 < len(left.places) < system.shape[0]
    solution = np.zeros(target.shape)
    solution[left.places] = np.linalg.solve(left.system.toarray(), left.target.toarray())
    left.complete(solution, slice(None))
    np.testing.assert_allclose(solution, np.linalg.solve(system.toarray(), target.toarray()), atol=1e-12)


def test_nothing_is_eliminated_where_most_items_meet():
    system, target = sparse_system(40, 2, seed=0, density=0.3)
    left = eliminate(system, target, 2)
    assert not left.levels and (left.system != system).nnz == 0 and (left.target != target).nnz == 0


def test_items_that_meet_none_leave_nothing_to_solve():
    left = eliminate(csr_array(diags_array(np.arange(1.0, 11.0))), csr_array(np.eye(10)), 2)
    assert len(left.places) == 0
    solution = np.zeros((10, 10))
    left.complete(solution, slice(None))
    np.testing.assert_allclose(solution, np.diag(1 / np.arange(1.0, 11.0)))


@given(st.integers(1, 30), st.floats(0, 0.5), st.integers(0, 99))
def test_no_two_chosen_items_meet_and_no_other_could_be_chosen(n, density, seed):
    meets = np.random.default_rng(seed).random((n, n)) < density
    meets |= meets.T | np.eye(n, dtype=bool)
    graph = csr_array(meets.astype(float))
    taken = independent(graph.indptr, graph.indices)
    assert (meets[taken][:, taken].sum(1) == 1).all()
    assert meets[:, taken].any(1).all()


@pytest.fixture
def eager(monkeypatch):
    """Small systems are eliminated, too: their diagonal is already a large part of them."""
    monkeypatch.setattr(ridge, "_SPARSE", 0.1)


def some_blocks(n, kinds, seed):
    random = np.random.default_rng(seed)
    having = random.random((3 * n, n)) < 0.01
    having[:, :5] = False  # items that nobody has
    xs = [torch.from_numpy(having * random.random((3 * n, n))).float() for _ in range(kinds)]
    blocks = {(a, b): xs[a].T @ xs[b] for a in range(kinds) for b in range(a, kinds)}
    targets = [x.T @ torch.from_numpy(random.random((3 * n, 9)) < 0.02).float() for x in xs]
    return blocks, targets, [2.0 * 5**a for a in range(kinds)]


@pytest.mark.parametrize("kinds", [1, 3])
def test_a_sparse_system_of_blocks_has_the_solution_of_the_dense_solver(eager, monkeypatch, kinds):
    blocks, targets, penalties = some_blocks(120, kinds, seed=kinds)
    assert blocks[0, 0].count_nonzero() < ridge._SPARSE * blocks[0, 0].numel()
    monkeypatch.setattr(ridge, "_COLUMNS", 4)  # of nine
    found = ridge.block_ridge(blocks, targets, penalties)
    torch.testing.assert_close(found, ridge._dense(blocks, targets, penalties), rtol=1e-5, atol=1e-9)
    assert (found[:, :5] == 0).all() and found.is_contiguous()
    monkeypatch.setattr(ridge, "_dense", lambda *given: pytest.fail("solved as a whole"))
    ridge.block_ridge(blocks, targets, penalties)


def solved(system, target, width=1):
    left = eliminate(csr_array(system), csr_array(target), width)
    solution = np.zeros(target.shape)
    if len(left.places):
        solution[left.places] = np.linalg.solve(left.system.toarray(), left.target.toarray())
    left.complete(solution, slice(None))
    return solution


@pytest.mark.parametrize(("a", "b"), [(3.0, 7.0), (6.0, 14.0), (9.0, 5.0)])
def test_numbers_that_cancel_on_one_side_only_do_no_harm(a, b):
    one = np.array([[3.0, a, b], [a, 300.0, a * b / 3], [b, a * b / 3, 300.0]])
    system, target = np.kron(np.eye(6), one), np.random.default_rng(0).random((18, 4))
    np.testing.assert_allclose(solved(system, target), np.linalg.solve(system, target), rtol=1e-9)


def test_of_a_system_that_a_channel_made_unlike_its_mirror_image_the_mean_is_solved():
    system, target = (part.toarray() for part in sparse_system(120, 1, seed=9))
    pushed = system + np.triu(np.random.default_rng(1).random(system.shape) < 0.02, 1) * 0.1
    np.testing.assert_allclose(solved(pushed, target), np.linalg.solve((pushed + pushed.T) / 2, target), atol=1e-9)


def test_a_sparse_system_whose_rest_is_not_positive_definite_gives_no_numbers(eager):
    blocks, targets, penalties = some_blocks(60, 1, seed=0)
    most = blocks[0, 0].count_nonzero(0).topk(5).indices  # they are the last to be eliminated, if at all
    blocks[0, 0][most[:, None], most] += 50 * (1 - torch.eye(5))
    assert ridge.block_ridge(blocks, targets, penalties).isnan().all()


def test_a_sparse_system_that_is_not_positive_definite_gives_no_numbers(eager):
    blocks, targets, penalties = some_blocks(60, 2, seed=0)
    blocks[0, 0] = blocks[0, 0] - 100 * torch.eye(60)
    assert ridge.block_ridge(blocks, targets, penalties).isnan().all()


def test_a_sparse_system_with_what_is_no_number_gives_no_numbers(eager):
    blocks, targets, penalties = some_blocks(60, 2, seed=0)
    blocks[0, 1][7, 7] = torch.nan
    assert ridge.block_ridge(blocks, targets, penalties).isnan().all()
