import errno
import os

import numpy as np
import pytest
import torch

from federec.cohort import memory
from federec.cohort.memory import Arena, duplicate, mapped, spread, too_large
from federec.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture
def little_memory(monkeypatch):
    """Everything but an empty array is too large."""
    monkeypatch.setattr(memory, "FRACTION", 0.0)


def test_a_quarter_of_the_memory_is_too_large():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert too_large((memory // 16 + 1,), np.float32) and not too_large((memory // 16,), np.float32)


def test_what_is_spread_and_copied_lies_in_files(little_memory):
    one = torch.tensor([[1.0, 2.0]])
    many = spread(one, 3)
    other = duplicate(many)
    many += 1
    assert torch.equal(many, one.expand(3, 1, 2) + 1) and torch.equal(other, one.expand(3, 1, 2))
    assert many.is_contiguous() and many.data_ptr() % 4096 == other.data_ptr() % 4096 == 0  # begins a page of its own


def test_a_large_copy_begins_a_page_of_its_own():
    value = torch.randn(1 << 10, 1 << 11)
    copied = duplicate(value.T)
    assert torch.equal(copied, value.T) and copied.is_contiguous() and copied.data_ptr() % 4096 == 0
    copied += 1
    assert not torch.equal(copied, value.T)


@pytest.mark.parametrize("share", [0.0, 0.25], ids=["in a file", "in memory"])
def test_an_arena_keeps_its_rows_as_it_grows(monkeypatch, share):
    monkeypatch.setattr(memory, "FRACTION", share)
    arena = Arena(np.zeros((0, 2), np.float32), CPU)
    for length in (3, 4, 50):
        arena.reserve(length, 60)
        arena.tensor[length - 1] = length
    assert arena.tensor[[2, 3, 49]].tolist() == [[3, 3], [4, 4], [50, 50]] and arena.tensor.sum() == 2 * 57
    copied = arena.copy(50)
    arena.tensor += 1
    assert len(copied.tensor) == 50 and copied.tensor.sum() == 2 * 57
    copied.reserve(51, 60)
    assert copied.tensor.sum() == 2 * 57


def test_an_arena_moves_to_a_file_when_it_grows_too_large(monkeypatch):
    arena = Arena(np.ones((4, 2), np.float32), CPU)
    monkeypatch.setattr(memory, "FRACTION", 0.0)
    arena.reserve(9, 9)
    assert arena.tensor.shape == (9, 2) and arena.tensor.sum() == 8


def test_an_arena_takes_a_mapped_array_over_and_can_lengthen_it():
    given = mapped((4, 2), np.float32)
    given[:] = 1
    arena = Arena(given, CPU)
    arena.tensor[0] = 5
    assert given[0, 0] == 5  # not a copy
    arena.reserve(8, 8)
    assert arena.tensor.sum() == 16


def test_a_full_disk_is_told_before_anything_is_written(monkeypatch):
    def full(*facts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(UserError, match=r"No space left on device; .* take 0\.0 GiB; set TMPDIR"):
        mapped((5,), np.float32)
