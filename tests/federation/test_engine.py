from dataclasses import dataclass, replace

import pytest
import torch

from federec.cohort.draw import Devices
from federec.federation import engine
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.forms import LinearScore
from federec.methods.pfedrec import PFedRec
from federec.plugins.base import Plugin, plug
from federec.plugins.ldp import LDP
from federec.plugins.registry import PLUGINS, build


@dataclass(frozen=True)
class Unknown:
    """A form that nothing knows."""


@dataclass(frozen=True)
class Grown(LinearScore):
    """A form with more to it than the one that it is made from."""


class New(PFedRec):
    """A method of a form that nothing knows."""

    name = "new"

    def fused_form(self, n_items):
        return Unknown()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_kernel_takes_a_form_of_another(monkeypatch, kind):
    linear = engine.kernels("cpu")[LinearScore]
    monkeypatch.setattr(engine, "find_spec", lambda name: name)
    monkeypatch.setattr(engine, "kernels", lambda kind: {LinearScore: linear})
    grown = Grown("items", "w", None, 0.1, 0.1, alternate=False)
    assert engine.fits(LinearScore("items", "w", None, 0.1, 0.1, alternate=False), kind)
    assert not engine.fits(Unknown(), kind) and not engine.fits(grown, kind)
    where = {"cpu": "a CPU", "cuda": "a GPU"}[kind]
    assert engine.why_not(New(), 50, kind) == f"no kernel on {where} plays a Unknown"


def test_a_round_of_an_unknown_form_is_not_begun(split_of):
    devices, one = Devices.of(split_of([range(4), range(3)], 9), True), torch.tensor([0])
    state = State.start(New(), 9, 2, 1)
    with pytest.raises(KeyError):
        engine.fused_round(New(), state, devices, 1, 1)
    with pytest.raises(KeyError):
        engine.fused_scores(New(), state, devices, one, one[:, None])


@pytest.mark.parametrize("plugin", [Plugin, *PLUGINS.values()], ids=lambda plugin: plugin.__name__)
def test_no_plugin_makes_something_of_a_form_that_it_does_not_know(plugin):
    if plugin is Plugin:
        assert Plugin.fuse(New(), Unknown()) is None
    elif plugin is LDP:  # it changes the channel, and leaves the form to that
        assert "works on single updates" in str(engine.why_not(plug(New, LDP)(), 50, "cpu"))
    else:
        assert plug(New, plugin)().fused_form(50) is None


@pytest.mark.parametrize(
    ("name", "plugins", "settings", "reason"),
    [
        ("pfedrec", (), {"hidden": (4,)}, "no kernel plays 'pfedrec' with these settings"),
        ("pfedrec", ("sam",), {"hidden": (4,)}, "no kernel plays 'pfedrec' with these settings"),
        ("fedease", (), {}, "no kernel plays 'fedease'"),
        ("fedmf", ("plgc", "recency", "dualper"), {}, "no kernel plays plug-in 'recency' on fedmf+plgc"),
        ("fedrap", ("ldp", "recency"), {}, None),
        ("pfedrec", ("sam", "plgc"), {}, "no kernel plays plug-in 'plgc' on pfedrec+sam"),
        ("ease", (), {}, "no kernel plays 'ease'"),
        ("pfedrec", (), {}, None),
    ],
)
def test_what_is_said_where_no_kernel_fits(name, plugins, settings, reason):
    assert engine.why_not(build(name, plugins, settings), 50, "cpu") == reason


def test_without_triton_no_kernel_fits_a_gpu(monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    assert "need Triton" in engine.why_not(PFedRec(), 50, "cuda:1")
    assert not engine.fits(PFedRec().fused_form(50), "cuda")
    assert engine.why_not(PFedRec(), 50, "mps") == "there are kernels for cpu and cuda, not for mps"


@pytest.mark.parametrize("name", ["pfedrec", "fedrap", "fedncf"])
def test_streams_follow_the_numbers_of_the_devices(small, random_split, name):
    """A device draws by its number in the random streams, not by its place among the devices here."""
    devices = Devices.of(random_split(users=9, items=40, least=4, most=20, seed=3), True)
    numbered = replace(devices, numbers=torch.randperm(9, generator=torch.Generator().manual_seed(1)) + 100)
    method, users = small(name), torch.tensor([4, 1, 7])
    states = [State.start(method, 40, 9, 1) for _ in range(2)]
    slow = play(method, states[0], numbered, users, 7, 1)
    playing = engine.fused_round(method, states[1], numbered, 7, 1)
    playing.play(users, users.new_zeros(3, 0))
    assert playing.finish().loss == pytest.approx(slow.loss, rel=1e-4)
    for key, value in states[0].shared.items():
        torch.testing.assert_close(states[1].shared[key], value, rtol=1e-3, atol=1e-4 * float(value.abs().max()))
