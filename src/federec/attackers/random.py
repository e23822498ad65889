"""Random: attackers send normal noise on the rows and layers that they would have sent."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from federec import streams
from federec.attackers.base import Attack, Scene, row_norms
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.stages.noise import drawn, gaussian
from federec.stages.randomness import Simulated


class Random(Attack):
    """Noise instead of updates."""

    name: ClassVar[str] = "random"

    def send(self, scene: Scene, plan: Params | None, update: Update, users: Tensor) -> Update:
        random = Simulated.of(scene.seed, scene.round, scene.devices.numbered(users))
        noise = update.with_values(dict(drawn(update, random, streams.ATTACK, gaussian)))
        scale = self.strength * row_norms(update) / row_norms(noise).clamp(min=1e-30)
        values: Params = {name: rows * scale[update.owner, None] for name, rows in noise.rows.items()}
        for name, layer in noise.layers.items():
            honest, size = (each.flatten(1).norm(dim=1) for each in (update.layers[name], layer))
            factor = self.strength * honest / size.clamp(min=1e-30)
            values[name] = layer * factor.view(-1, *[1] * (layer.dim() - 1))
        return update.with_values(values)
