"""Sharpness-aware minimisation (Foret et al., ICLR 2021) for stacked devices, group by group.

    eps_G = rho_G g_G / |g_G|            g: gradient at the current values;  one norm over all of a device's group G
    SAM gradient of G = d loss / d G     at the current values with G, and nothing else, moved by eps_G

All groups start from the same g. A group without a radius keeps g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from federec.cohort.layers import Params
from federec.lazy import torch

if TYPE_CHECKING:
    from federec.cohort.cohort import Step

    Gradient = Callable[[Step, Sequence[str]], Params]
    """Each device's gradient with respect to the named parameters, at `step.values()`."""


def sharpness_aware(gradient: Gradient, step: Step, groups: Sequence[tuple[Sequence[str], float]]) -> Params:
    """SAM gradients of groups of parameters, each with its radius rho."""
    found = gradient(step, list(chain.from_iterable(names for names, _ in groups)))
    flat = dict(found)
    for names, rho in groups:
        if names and rho:
            with step.shifted(_uphill(step, {name: flat[name] for name in names}, rho)):
                found |= gradient(step, names)
    return found


def _uphill(step: Step, gradient: Params, rho: float) -> Params:
    """A move of length rho along the gradient of a group, on every device."""
    along = {name: step.summed(name, value) for name, value in gradient.items()}
    # Over a row's occurrences, gradient . sum is |sum|^2: each distinct row counts once in the norm.
    parts = [(value * along[name]).flatten(1).sum(1) for name, value in gradient.items()]
    scale = rho / torch.stack(parts).sum(0).sqrt().clamp_(min=1e-12)
    return {name: value * scale.view(-1, *[1] * (value.dim() - 1)) for name, value in along.items()}
