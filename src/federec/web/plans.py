"""How a device learns in a round, in the words of the page's modules (`static/linear.js`, `static/additive.js`)."""

from __future__ import annotations

from typing import Any

from federec.errors import UserError
from federec.methods.base import DeviceMethod, Method
from federec.methods.forms import AdditiveScore, LinearScore

WORKS = "pfedrec, fedmf, fedrecon, fedrap, fedease and ease"
"""Methods that a page can play."""

Plan = dict[str, Any]


def form_of(method: Method, n_items: int) -> LinearScore | AdditiveScore:
    """The form of a method that the page can play; others are refused."""
    form = method.fused_form(n_items) if isinstance(method, DeviceMethod) else None
    called = "+".join((method.name, *method.plugins))
    if not isinstance(form, LinearScore | AdditiveScore):
        raise UserError(f"a page cannot play '{called}'; train one of {WORKS}")
    uphill = (form.rho, form.item_rho) if isinstance(form, LinearScore) else (form.rho, form.common_rho)
    if form.mixing or form.emphasis or any(uphill):
        raise UserError(f"a page cannot play '{called}'; train it without plgc, sam and recency")
    if isinstance(form, AdditiveScore) and form.alternate:
        raise UserError(f"a page cannot play '{called}'; train it without dualper")
    if isinstance(form, LinearScore) and form.own:
        raise UserError(f"a page cannot play '{called}', which shares nothing; train one of {WORKS}")
    return form


def plan_of(method: DeviceMethod, form: LinearScore | AdditiveScore, round_: int) -> Plan:
    """The plan of a round."""
    plan: Plan = {"negatives": method.negatives, "batch": method.batch, "epochs": method.epochs}
    if isinstance(form, LinearScore):
        return plan | {
            "rate": form.rate,
            "itemRate": form.item_rate,
            "bias": form.bias is not None,
            "alternate": form.alternate,
            "passes": form.passes,
            "disjoint": form.disjoint,
        }
    pace = form.round_decay ** (round_ - 1)
    rate, common_rate, own_rate = (step * pace for step in form.rates)
    away, small = form.regularisers(round_)
    return plan | {
        "rate": rate,
        "commonRate": common_rate if form.common else 0.0,
        "ownRate": own_rate if form.own else 0.0,
        "away": away,
        "small": small,
        "squared": form.squared,
        "weightDecay": form.weight_decay,
        "stepDecay": form.step_decay,
        "tolerance": form.tolerance,
    }
