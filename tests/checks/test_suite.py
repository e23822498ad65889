"""Every check finds the fault that it is there for."""

from typing import Any, ClassVar

import pytest
import torch

import federec as fr
from federec.checks.suite import suite, verdict
from federec.methods.pooled import PooledMethod


def failed(class_, names=None):
    """The checks that fail, and what was seen; of those with these names, if any are given."""
    asked = [check for check in suite(class_) if names is None or str(check) in names]
    return {str(one.check): one.saw for one in map(verdict, asked) if not one.passed}


class Fine(fr.FedMF):
    dim: int = 4
    item_lr_factor: float = 1.0


class Crowd(Fine):
    """A device's step depends on who else is in its cohort."""

    def step(self, step):
        super().step(step)
        step.cohort.params["user"] += 0.01 * step.cohort.params["user"].mean()


class Spy(Fine):
    """Sends the private vector."""

    def message(self, cohort, shared):
        return super().message(cohort, shared) | {"user": cohort.params["user"]}


class Wrong(Fine):
    """Sends rows of another width than it declares."""

    def message(self, cohort, shared):
        return {name: value[:, :2] for name, value in super().message(cohort, shared).items()}


class Both(Fine):
    """Declares the same parameter as private and as shared."""

    def sends(self):
        return {**self.shared(), **self.private()}

    def message(self, cohort, shared):
        return super().message(cohort, shared) | {"user": cohort.params["user"]}


class Random(Fine):
    """Is another method every time."""

    def step(self, step):
        super().step(step)
        step.cohort.params["user"] += 0.01 * torch.rand(1)


class Secret(Fine):
    """Remembers something outside of its parameters, which a run folder does not keep."""

    seen: ClassVar[list[int]] = []

    def server_step(self, shared, mean, memory):
        self.seen.append(1)
        return super().server_step(shared, {name: value * len(self.seen) for name, value in mean.items()}, memory)


class Idle(Fine):
    """Learns nothing."""

    def step(self, step):
        pass


class Raises(Fine):
    def score(self, p):
        return p["nothing"]


class Form(Fine):
    """Its kernel takes other steps than it does in torch."""

    def fused_form(self, n_items):
        return Fine(lr=2 * self.lr).fused_form(n_items)


class Odd(Fine):
    """A setting that JSON cannot hold."""

    model_config: ClassVar[dict[str, Any]] = {"arbitrary_types_allowed": True}
    thing: Any = torch.zeros(2)


class Required(Fine):
    must: int


class Empty(fr.DeviceMethod):
    pass


class NoStep(Fine):
    step = fr.DeviceMethod.step


class Central(fr.CentralMethod):
    pass


class Pooled(PooledMethod):
    pass


class Mixed(fr.Popularity):
    """A user's scores depend on who else is asked."""

    def scores(self, model, split, users):
        return super().scores(model, split, users) + len(users)


FAULTS = {
    Crowd: {"a cohort of N is N cohorts of one": "differs by", "private parameters stay private": "another device's"},
    Spy: {"only what is declared is sent": "'user' is sent, but `sends` does not declare it"},
    Wrong: {"only what is declared is sent": "'items' is sent as ["},
    Both: {"only what is declared is sent": "'user' is private and shared or sent at the same time"},
    Random: {"a round can be repeated": "differs when the same round is played again"},
    Secret: {"stopped and resumed": "of the resumed run differ", "a round can be repeated": "differs when"},
    Idle: {"absent devices stay as they are": "a round changes nothing at all"},
    Raises: {"protocol clean": "KeyError: 'nothing'"},
    Form: {"both engines agree": "differs by"},
    Odd: {"its settings can be kept in files": "PydanticSerializationError"},
    Required: {"every setting has a default": "must={} of 'required': field required"},
    Empty: {"it is complete": "Empty has no `score` (how a device scores) and no `step`"},
    NoStep: {"it is complete": "NoStep has no `step` (what a device does with a batch)"},
    Central: {"it is complete": "Central has no `scores` (the scores of all items) and no `refine`"},
    Pooled: {"it is complete": "and no `item_params`"},
    Mixed: {"a user's scores are its own": "scores: differs by"},
}


@pytest.mark.parametrize("class_", FAULTS, ids=lambda class_: class_.__name__)
def test_every_fault_is_found(class_):
    found = failed(class_, FAULTS[class_])
    for check, says in FAULTS[class_].items():
        assert says in found[check]
        assert "\n" not in found[check]


def test_a_good_method_passes_and_an_exception_names_its_line():
    assert failed(Fine) == {}
    assert "test_suite.py, line " in failed(Raises, ["protocol clean"])["protocol clean"]


class Halved(fr.Plugin):
    """Half the steps."""

    def descend(self, step, rates):
        super().descend(step, {name: rate / 2 for name, rate in rates.items()})


class CrowdPlugin(fr.Plugin):
    def fit(self, cohort):
        super().fit(cohort)
        for name in self.private():
            cohort.params[name] += cohort.params[name].mean()


class Clash(fr.Plugin):
    lr: float = 3.0


def test_plugins_are_checked_on_two_methods():
    names = [str(check) for check in suite(Halved)]
    assert {name.split(":")[0] for name in names} == {"on fedmf", "on pfedrec"}
    assert failed(Halved) == {}
    alone = "on pfedrec: a cohort of N is N cohorts of one"
    assert alone in failed(CrowdPlugin, [alone])
    assert "both have a setting 'lr'" in failed(Clash)["it fits fedmf or pfedrec"]


def test_a_registered_name_and_what_is_neither():
    assert [str(check) for check in suite("popularity")][-1] == "it learns"
    with pytest.raises(fr.UserError, match="unknown method or plug-in 'pfedrek' - did you mean 'pfedrec'"):
        suite("pfedrek")
    with pytest.raises(fr.UserError, match="is no method or plug-in"):
        suite("federec.runs.config:RunConfig")
