"""Plug-ins as objects: what `|` makes, and what it prints."""

import pytest

import federec as fr
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS, build


def combined(name, plugin):
    try:
        return build(name, [plugin])
    except fr.UserError:
        return None


FITTING = [(name, plugin) for name in METHODS for plugin in PLUGINS if combined(name, plugin)]


@pytest.mark.parametrize(("name", "plugin"), FITTING)
def test_an_object_and_a_class_give_what_names_give(name, plugin):
    method, expected = METHODS[name](), build(name, [plugin])
    assert method | PLUGINS[plugin]() == method | PLUGINS[plugin] == expected
    assert (method | PLUGINS[plugin]).plugins == (plugin,)


@pytest.mark.parametrize(("name", "plugin"), FITTING)
def test_what_is_printed_can_be_pasted_back(name, plugin):
    method = build(name, [plugin])
    assert eval(repr(method), {key: getattr(fr, key) for key in fr.__all__}) == method


def test_settings_of_both_are_kept_and_the_last_plugin_is_outermost():
    method = fr.FedMF(dim=7) | fr.DualPer() | fr.SAM(rho_shared=0.5) | fr.Recency(half_life=3)
    assert (method.dim, method.rho_shared, method.half_life) == (7, 0.5, 3)
    assert method.plugins == ("dualper", "sam", "recency")
    assert method == build("fedmf", ["dualper", "sam", "recency"], {"dim": 7, "rho_shared": 0.5, "half_life": 3})
    assert method != fr.FedMF(dim=7) | fr.DualPer() | fr.SAM(rho_shared=0.4) | fr.Recency(half_life=3)


def test_a_plugin_by_itself_holds_only_its_settings():
    assert dict(fr.PLGC(beta=0.0)).keys() == fr.PLGC.model_fields.keys()
    assert repr(fr.SAM(rho_shared=0.5)) == "SAM(rho_shared=0.5, rho_private=0.02)"


def test_only_plugins_go_on_methods():
    for wrong in (fr.FedMF(), fr.FedMF() | fr.SAM(), 5, "sam"):
        with pytest.raises(fr.UserError, match="plug-in"):
            fr.FedMF() | wrong
    for wrong in (fr.FedMF, "fedmf", 5):
        with pytest.raises(fr.UserError, match="is no method; put plug-ins on an object of one"):
            wrong | fr.SAM()


def test_train_takes_objects(random_split):
    data = random_split().data
    run = fr.train(fr.FedMF(dim=4), data, rounds=1, plugins=[fr.SAM(rho_shared=0.3), "recency", fr.DualPer])
    assert run.method == fr.FedMF(dim=4) | fr.SAM(rho_shared=0.3) | fr.Recency() | fr.DualPer()
    assert run.result["plugins"] == ["sam", "recency", "dualper"]
    same = fr.train(fr.FedMF(dim=4) | fr.SAM(rho_shared=0.3) | fr.Recency() | fr.DualPer(), data, rounds=1)
    assert same.test == run.test
