"""Sums of few rows of a large table: what closed forms score with, a row of weights for each item of a history."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def weighted_sums(counts: Tensor, places: Tensor, weight: Tensor, table: Tensor) -> Tensor:
    """[C, n] sum_k weight_k table[place_k] over as many places as `counts` [C] says; those of all sums lie one after
    the other, in `places` [N] and `weight` [N]. On a CPU rows are added up: most of what a product of matrices would
    compute is for zeros."""
    if not table.is_cuda:
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return embedding_bag(places, table, starts, mode="sum", per_sample_weights=weight, include_last_offset=True)
    owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    return table.new_zeros(len(counts), len(table)).index_put_((owner, places), weight, accumulate=True) @ table
