"""FedRecGEL - Sharpness-Aware Minimization for Generalized Embedding Learning in Federated Recommendation (Yu et al.,
WWW 2026).

    r_ij = sigma(h . [p_i * v_j, MLP([q_i, w_j])] + b)      NeuMF;  p_i, q_i: private;  v_j, w_j, MLP, h, b: shared

Every device is a task of one multi-task problem, and flat minima are sought for what tasks share and for what each has
to itself. Once a round, on all its samples, with g the gradient of the sum of the means over chunks of 128,
    shared   G = d loss / d shared     at shared + rho_shared g_shared / |g_shared|         sent to the server
    private  steps by its own Adam along d loss / d private      at private + rho_private g_private / |g_private|
and the server steps by Adam along the mean of the G it received. A radius of 0 takes that part's plain gradient.

The authors' settings name a server step of 1.5, but their code never reads it and uses 0.001, the default here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from federec.cohort.cohort import Cohort, Step
from federec.cohort.layers import Param, Params, dot, hidden, mlp_params
from federec.cohort.optim import server_adam, server_moments
from federec.mathematics.sharpness import sharpness_aware
from federec.methods.base import DeviceMethod
from federec.methods.forms import Form, NeuralScore


class FedRecGEL(DeviceMethod):
    """NeuMF with sharpness-aware gradients for the shared and for the private parameters.

    >>> fr.FedRecGEL(rho_shared=0.0).rho_shared
    0.0
    """

    name: ClassVar[str] = "fedrecgel"
    paper: ClassVar[str] = "Yu et al., Sharpness-Aware Minimization for Generalized Embedding Learning, WWW 2026"
    default_participation: ClassVar[float] = 0.1
    refuses: ClassVar[Mapping[str, str]] = {
        "sam": "its gradients are sharpness-aware already",
        "plgc": "its devices send gradients and have no item rows of their own to mix",
    }

    dim: PositiveInt = 32
    """Width of the user vectors and item rows that are multiplied (GMF)."""
    mlp_dim: PositiveInt = 128
    """Width of the user vectors and item rows that go through the MLP."""
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (128, 64, 32)
    """Widths of the MLP's layers; its input is 2 * mlp_dim wide."""
    lr: NonNegativeFloat = 0.1
    """Adam's step for the private user vectors."""
    server_lr: NonNegativeFloat = 0.001
    """Adam's step on the server."""
    rho_shared: NonNegativeFloat = 0.02
    """How far the shared parameters are moved uphill for their gradient (rho_co); 0 = plain gradient."""
    rho_private: NonNegativeFloat = 0.02
    """How far the private parameters are moved uphill for their gradient (rho_ur); 0 = plain gradient."""
    batch: PositiveInt = 128
    """Samples in a chunk of the loss, which is the sum of the chunks' means: busy devices weigh more."""
    epochs: PositiveInt = 1
    """Steps of the private part in a round; the shared gradients of all of them are added up."""

    def shared(self) -> dict[str, Param]:
        return {
            "items_gmf": Param((self.dim,), scale=0.01, rows=True),
            "items_mlp": Param((self.mlp_dim,), scale=0.01, rows=True),
            **mlp_params("mlp", (2 * self.mlp_dim, *self.hidden), xavier=True),
            **mlp_params("out", (self.dim + self.hidden[-1], 1), xavier=True),
        }

    def private(self) -> dict[str, Param]:
        return {
            "user_gmf": Param((self.dim,), scale=0.01, adam=True),
            "user_mlp": Param((self.mlp_dim,), scale=0.01, adam=True),
        }

    def score(self, p: Params) -> Tensor:
        product, network = p["out.0.weight"][:, :, 0].split([self.dim, self.hidden[-1]], 1)
        top = hidden(p, "mlp", p["items_mlp"], len(self.hidden), p["user_mlp"])
        return dot(product * p["user_gmf"], p["items_gmf"]) + dot(network, top) + p["out.0.bias"]

    def features(self, p: Params) -> Tensor:
        top = hidden(p, "mlp", p["items_mlp"], len(self.hidden), p["user_mlp"])
        return torch.cat([p["user_gmf"][:, None] * p["items_gmf"], top], 2)

    def fused_form(self, n_items: int) -> Form | None:
        layers = tuple(name for name, param in FedRecGEL.shared(self).items() if not param.rows)  # also with plug-ins
        tables, users = ("items_gmf", "items_mlp"), ("user_gmf", "user_mlp")
        return NeuralScore(
            tables,
            users,
            layers,
            self.lr,
            layer_rate=self.lr,  # where a plug-in keeps layers on the device; shared ones stay
            gradients=True,
            rho_shared=self.rho_shared,
            rho_private=self.rho_private,
            widest=max(self.dim, self.mlp_dim, *self.hidden),
        )

    def fit(self, cohort: Cohort) -> None:
        for epoch in range(self.epochs):
            self.step(cohort.whole(self.batch, epoch))

    def step(self, step: Step) -> None:
        shared, private, outbox = self.shared(), self.private(), step.cohort.outbox
        gradients = self.gradient(step, [*shared, *private])
        for name in private:
            step.move(name, gradients[name], self.lr)
        for name, param in shared.items():
            gradient = step.scattered(name, gradients[name]) if param.rows else gradients[name]
            outbox[name] = outbox[name] + gradient if name in outbox else gradient

    def gradient(self, step: Step, names: Sequence[str]) -> Params:
        declared = self.shared()
        shared = [name for name in names if name in declared]
        private = [name for name in names if name not in declared]
        return sharpness_aware(super().gradient, step, [(shared, self.rho_shared), (private, self.rho_private)])

    def message(self, cohort: Cohort, shared: Params) -> Params:
        return cohort.outbox

    def server_start(self, shared: Params) -> Params:
        return server_moments(shared)

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        return server_adam(shared, mean, memory, self.server_lr)
