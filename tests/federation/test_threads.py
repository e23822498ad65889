"""Threads share users in parts that depend on nothing but the users' costs and the number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count, pairwise
from pathlib import Path
from threading import Barrier, current_thread
from time import sleep

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from federec.checks.comparing import random_split
from federec.cohort.draw import Devices
from federec.evaluation.protocols import protocol
from federec.federation import fused_windows
from federec.federation import threads as module_threads
from federec.federation.threads import (
    all_torch_threads,
    aside,
    deal,
    even_parts,
    give_back,
    in_slices,
    in_threads,
    lend,
    on_threads,
    one_blas_thread,
    one_torch_thread,
    threads,
)
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer


@pytest.fixture(autouse=True)
def three():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(("least", "most", "parts"), [(1, 5, 15), (10**6, 5, 3), (1, 1, 3), (400, 5, 6)])
def test_parts_become_smaller_and_cost_the_same_for_each_thread(least, most, parts):
    costs = np.sort(np.random.default_rng(0).integers(1, 60, 100))[::-1]
    order, ptr = deal(costs, 3, least, most)
    assert sorted(order) == list(range(100)) and len(ptr) == 1 + parts and ptr[0] == 0 and ptr[-1] == 100
    sums = np.array([costs[order[a:b]].sum() for a, b in pairwise(ptr)]).reshape(-1, 3)
    halves = np.array([1.0] if len(sums) == 1 else [0.5**k for k in [*range(1, len(sums)), len(sums) - 1]])
    assert np.abs(sums - costs.sum() / 3 * halves[:, None]).max() <= 1.5 * costs[0]
    assert all((np.diff(order[a:b]) > 0).all() for a, b in pairwise(ptr))  # the longest come first


@pytest.mark.parametrize("costs", [[], [0, 0], [7]], ids=str)
def test_few_users_are_all_in_some_part(costs):
    order, ptr = deal(np.array(costs, np.int64), 3, 1, 5)
    assert order.tolist() == list(range(len(costs))) and ptr[0] == 0 and ptr[-1] == len(costs)
    assert even_parts(len(costs))[0] == 0 and even_parts(len(costs))[-1] == len(costs)


def test_torch_has_one_thread_in_those_of_kernels():
    module_threads._pool.cache_clear()
    found, together = {}, Barrier(3, timeout=60)  # so that no thread works twice
    in_threads(3, lambda _: together.wait())  # the threads begin, but have not used torch yet
    torch.set_num_threads(3)

    def look(number):
        found[number] = torch.get_num_threads()
        together.wait()

    in_threads(3, look)
    assert found == {0: 3, 1: 1, 2: 1} and torch.get_num_threads() == 3


def test_torch_has_one_thread_while_kernels_keep_theirs():
    with one_torch_thread():
        assert torch.get_num_threads() == 1 and threads() == 3
        with one_torch_thread():
            assert threads() == 3
        with all_torch_threads():
            assert torch.get_num_threads() == threads() == 3
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads() == 3


def test_an_error_in_any_thread_is_raised_when_all_have_ended():
    numbers, ended = count(), []

    def work(parts):
        number = next(numbers)
        ended.append(number)
        if number == 1:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        on_threads(np.arange(9), work)
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize(("length", "least", "count"), [(7, 1, 3), (7, 3, 2), (7, 8, 1), (2, 1, 2), (0, 0, 1)])
def test_slices_cover_a_length_once(length, least, count):
    slices = []
    in_slices(length, slices.append, least)
    assert sorted(place for some in slices for place in range(length)[some]) == list(range(length))
    assert len(slices) == count


@pytest.mark.parametrize("number", [1, 3])
def test_work_aside_is_waited_for_and_its_error_is_raised_then(number):
    torch.set_num_threads(number)
    assert aside(lambda: number)() == number

    def broken():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        aside(broken)()


def test_threads_are_kept_whatever_the_number_of_slices():
    names = set()
    for number in (3, 2, 3):
        in_threads(number, lambda _: (names.add(current_thread().name), sleep(0.01)))
    assert len(names) == 3


def test_a_forked_process_starts_threads_of_its_own():
    calls = []
    on_threads(np.arange(9), calls.append)
    child = os.fork()
    if child == 0:
        on_threads(np.arange(9), calls.append)  # would wait for ever for threads that are not here
        os._exit(len(calls))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


def test_memory_is_used_again_by_one_at_a_time(random_split):
    devices = Devices.of(random_split(), False)
    one, other = lend(devices, np.zeros, 3), lend(devices, np.zeros, 3)
    assert one is not other
    give_back(devices, one, np.zeros, 3)
    assert lend(devices, np.zeros, 3) is one and lend(devices, np.zeros, 4) is not one


def blas_threads():
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture
def two_blas_threads():
    with one_blas_thread():  # the libraries are loaded
        pass
    with threadpool_limits(2, "blas"):
        yield


def test_blas_has_one_thread_within(two_blas_threads):
    with one_blas_thread():
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        _ = 1 / 0
    assert blas_threads() == {2}


@pytest.mark.parametrize("last", ["this", "other"])
def test_blas_has_its_threads_again_whoever_leaves_last(last):
    code = f"""
from threading import Event, Thread
from federec.federation.threads import one_blas_thread
from tests.federation.test_threads import blas_threads
begun, end = Event(), Event()
def hold():
    with one_blas_thread():
        begun.set()
        end.wait()
with one_blas_thread():
    pass
thread = Thread(target=hold)
thread.start()
begun.wait()
with one_blas_thread():
    assert blas_threads() == {{1}}
    if {last == "this"}:
        end.set()
        thread.join()
end.set()
thread.join()
assert blas_threads() == {{2}}
"""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("fedncf", {"learn", "neural_scores"}),
        ("fedrecgel", {"learn", "neural_scores"}),
        ("fedpergnn", {"learn"}),
        ("fedsasrec", {"gradient", "outputs"}),
        ("sasrec", {"gradient", "outputs"}),
    ],
)
def test_kernels_that_multiply_matrices_wake_no_threads_of_blas(monkeypatch, two_blas_threads, name, kernels):
    """`kernels`: the functions that run those, to learn and to rank."""
    found = []

    def looking(count, work):
        asking = {sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name}
        found.extend((one, blas_threads()) for one in asking & kernels)
        in_threads(count, work)

    for module in (module_threads, fused_windows):
        monkeypatch.setattr(module, "in_threads", looking)
    split = random_split(users=20, items=30)
    worker = trainer(build(name, ()), split, protocol("clean"), 0, engine="fused")
    worker.play(1)  # it also compiles
    found.clear()
    worker.play(2)
    assert {one for one, _ in found} == kernels and all(number == {1} for _, number in found)
    assert blas_threads() == {2}
