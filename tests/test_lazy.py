"""What is imported when it is first used."""

import pytest

from federec.aggregators.registry import AGGREGATORS
from federec.lazy import Registry, torch
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS
from federec.stages.registry import STAGES


@pytest.mark.parametrize("registry", [METHODS, PLUGINS, STAGES, AGGREGATORS], ids=lambda registry: registry.package)
def test_a_class_is_registered_under_the_name_it_gives_itself(registry):
    names = [getattr(class_, "plugin", None) or class_.name for class_ in registry.values()]
    assert names == list(registry) and len(registry) == len(names)


def test_only_what_is_asked_for_is_imported():
    registry = Registry("federec.nowhere", {"there-is-none": "Class"})
    assert "there-is-none" in registry and "other" not in registry
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        registry["there-is-none"]
    registry["mine"] = int
    assert registry["mine"] is int and [*registry] == ["there-is-none", "mine"]
    del registry["mine"]
    assert "mine" not in registry


def test_torch_is_torch():
    import torch as itself

    assert torch.zeros is itself.zeros and torch.nn.functional is itself.nn.functional
    with pytest.raises(AttributeError):
        _ = torch.there_is_none
