"""What `sasrec` and `fedsasrec` have in common: the settings of the transformer, its optimiser, and how it scores."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from federec.cohort.draw import History
from federec.cohort.layers import Params
from federec.cohort.optim import Adam, server_adam
from federec.mathematics.transformer import Transformer
from federec.settings import Part

_LEAST = 0.05
"""Fraction of its largest value that the step keeps at the end of the schedule."""


class SequenceSettings(Part):
    """A transformer over a user's items in their order, trained by AdamW with a rate that rises and falls."""

    default_rounds: ClassVar[int]

    dim: PositiveInt = 64
    """Width of item rows and of all layers."""
    layers: PositiveInt = 2
    """Layers of attention, each followed by a hidden layer four times as wide."""
    heads: PositiveInt = 2
    """Heads of attention; `dim` must be a multiple of them."""
    window: PositiveInt = 200
    """Items of a history that the model sees at once, the newest ones when it ranks."""
    reorder: bool = True
    """Whether items of the same time are put into a new order in every round: nobody knows which came first."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Fraction of the values that are set to zero during training."""
    lr: NonNegativeFloat = 0.003
    """Largest step of AdamW."""
    decay: NonNegativeFloat = 0.01
    """Weight decay of AdamW: every step shrinks each parameter by lr * decay."""
    warm_up: PositiveInt = 30
    """Steps of AdamW over which its rate rises to `lr`."""
    schedule: NonNegativeInt = 0
    """Rounds over which the rate of AdamW falls; 0 = all rounds of the run."""

    @model_validator(mode="after")
    def _whole_heads(self) -> SequenceSettings:
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} cannot be divided among {self.heads} heads")
        return self

    @property
    def network(self) -> Transformer:
        """Its sizes."""
        return Transformer(self.dim, self.layers, self.heads, self.window)

    @property
    def falls(self) -> int:
        """Rounds over which the rate falls; outside a run, whose length is not known, those of the default."""
        return self.schedule or self.default_rounds

    def ordered(self, history: History, keys: Tensor) -> History:
        """The histories as they are learned from in a round, of which `keys` [C] are the devices'."""
        return history.reordered(keys) if self.reorder else history

    def rate(self, done: int, steps: int) -> float:
        """The rate of AdamW after `done` of so many steps: up, then down along a straight line."""
        return self.lr * min(1.0, (done + 1) / self.warm_up) * max(_LEAST, 1 - done / steps)

    def stepped(self, params: Params, gradients: Params, moments: Params, steps: int) -> Params:
        """New parameters after one step of AdamW, of `steps` in all; the moments change in place."""
        lr = self.rate(int(moments["items/t"]), steps)
        return server_adam(params, gradients, moments, lr, Adam(beta2=0.98), self.decay)
