import pytest

from federec.errors import UserError
from federec.methods.pfedrec import PFedRec
from federec.methods.registry import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is_and_documents_its_settings(name):
    method = METHODS[name]
    assert method.name == name and method.paper and method.__doc__
    assert method.described().keys() == method.model_fields.keys()
    assert method().default_rounds >= 1


@pytest.mark.parametrize(
    "settings", [{"dims": 3}, {"lr": float("nan")}, {"lr": float("inf")}, {"lr": -1}, {"dim": 0}, {"batch": 0}]
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        PFedRec(**settings)


def test_settings_cannot_change_during_a_run():
    method = PFedRec()
    with pytest.raises(UserError):
        method.lr = 1.0
