"""Many steps of the same shape on a GPU, each of which the host starts with one call.

A small step is dozens of operations of a few microseconds, and starting them takes longer than they do. A CUDA graph
holds them all: it is recorded once, and played again on what was copied into its inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_FIRST = 3
"""Steps that are taken before one is recorded: libraries make their plans and workspaces in them."""


class Recorded:
    """A step that is called with a batch and changes other tensors in place. It must depend on nothing but tensors, and
    never wait for the GPU. A batch of another size than the recorded one is taken step by step."""

    def __init__(self, step: Callable[..., None]) -> None:
        self._step, self._taken = step, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()

    def __call__(self, *batch: Tensor) -> None:
        if self._graph is None and self._taken == _FIRST:
            self._inputs = tuple(value.clone() for value in batch)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):  # this records, and takes no step
                self._step(*self._inputs)
        if self._graph is not None and [v.shape for v in batch] == [v.shape for v in self._inputs]:
            torch._foreach_copy_(self._inputs, batch)
            self._graph.replay()
        else:
            self._step(*batch)
            self._taken += 1
