import pytest

from federec.errors import UserError
from federec.methods.pfedrec import PFedRec
from federec.methods.registry import METHODS, method_class


def test_methods_are_found_by_name():
    assert method_class("pfedrec") is PFedRec
    assert all(method_class(name).name == name for name in METHODS)


def test_an_unknown_method_is_refused_with_a_hint():
    with pytest.raises(UserError, match="unknown method 'pfedrek' - did you mean 'pfedrec'"):
        method_class("pfedrek")
    with pytest.raises(UserError, match=r"unknown method 'zzz' \(known: .*ease"):
        method_class("zzz")
