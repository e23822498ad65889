"""Recorded steps of a GPU, against the same steps one by one."""

import pytest
import torch

from federec.cohort.recorded import Recorded
from federec.evaluation.protocols import protocol
from federec.methods.mf import MF
from federec.methods.ncf import NCF
from federec.runtimes.simulation import trainer

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_every_step_counts_whatever_its_size():
    total = torch.zeros(3, device="cuda")
    calls = []

    def step(values):
        calls.append(len(values))
        total.add_(values.sum(0))

    recorded, batches = Recorded(step), [torch.rand(size, 3, device="cuda") for size in [8] * 9 + [5, 8, 2]]
    for batch in batches:
        recorded(batch)
    torch.testing.assert_close(total, torch.cat(batches).sum(0))
    assert calls == [8, 8, 8, 8, 5, 2]  # the fourth was recorded


@needs_gpu
@pytest.mark.parametrize("method", [MF(dim=4, batch=32, lr=0.02, scale=0.5), NCF(dim=4, batch=32, lr=0.02, scale=0.5)])
def test_epochs_on_a_gpu_end_where_those_of_a_cpu_do(random_split, method):
    split = random_split(users=40, items=30)
    workers = [trainer(method, split, protocol("clean"), 5, device=place) for place in ("cpu", "cuda")]
    for round_ in (1, 2):
        here, there = (worker.play(round_).model.tensors() for worker in workers)
    for name, value in here.items():
        torch.testing.assert_close(there[name].cpu(), value, rtol=1e-3, atol=1e-4, msg=name)
