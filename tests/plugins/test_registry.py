import pytest

from federec.errors import UserError
from federec.methods.base import DeviceMethod
from federec.methods.fedmf import FedMF
from federec.methods.pfedrec import PFedRec
from federec.plugins.base import parts
from federec.plugins.dualper import DualPer
from federec.plugins.recency import Recency
from federec.plugins.registry import PLUGINS, build, plugin_class, references, with_plugins
from federec.plugins.sam import SAM


def test_build_lays_plugins_over_a_method():
    method = build("fedmf", ["dualper"], {"dim": 7})
    assert isinstance(method, FedMF)
    assert (method.plugins, method.dim, method.name) == (("dualper",), 7, "fedmf")
    assert FedMF.plugins == ()
    assert set(type(method).model_fields) == set(FedMF.model_fields)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("pfedrek",), "unknown method 'pfedrek'"),
        (("fedmf", ["dualpr"]), "unknown plug-in 'dualpr' - did you mean 'dualper'"),
        (("fedmf", ["dualper", "dualper"]), "'dualper' is given twice"),
        (("ease", ["dualper"]), "'dualper' does not fit 'ease'"),
        (("fedals", ["dualper"]), "'dualper' does not fit 'fedals': its devices solve in closed form"),
        (("fedpergnn", ["ldp"]), "'ldp' does not fit 'fedpergnn': both have a setting 'laplace'"),
        (("fedmf", [], {"dimm": 3}), "'fedmf' has no setting 'dimm' - did you mean 'dim'"),
        (("fedmf", [], {"dim": 0}), "setting dim=0 of 'fedmf'"),
        (("ease", [], {"l2": []}), r"setting l2=\[\] of 'ease'"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(asked, message):
    with pytest.raises(UserError, match=message) as caught:
        build(*asked)
    assert "\n" not in str(caught.value)


def test_text_is_read_as_numbers():
    assert (
        build("pfedrec", [], {"dim": "16", "lr": "0.5"}).model_dump()
        == build("pfedrec", [], {"dim": 16, "lr": 0.5}).model_dump()
    )


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plugin_fits_a_device_method_or_says_that_it_does_not(name, device_method):
    plugin = plugin_class(name)
    assert plugin.plugin == name and plugin.__doc__
    if device_method.name == "everything" or name in device_method.plugins:
        return
    try:
        built = build(device_method.name, [*device_method.plugins, name])
    except UserError as refusal:
        assert str(refusal).startswith(f"plug-in '{name}' does not fit '{device_method.name}'")
        return
    assert isinstance(built, DeviceMethod) and built.plugins[-1] == name
    assert {**built.shared(), **built.private()}


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plugin_fits_pfedrec(name):
    assert build("pfedrec", [name]).plugins == (name,)


def test_a_method_knows_what_it_is_made_of():
    method = build("pfedrec", ["dualper", "sam"], {"dim": 5})
    assert parts(type(method)) == (PFedRec, (DualPer, SAM)) and parts(PFedRec) == (PFedRec, ())
    assert references(method) == ("pfedrec", ("dualper", "sam"))
    more = with_plugins(method, [Recency])
    assert more.plugins == ("dualper", "sam", "recency") and (more.dim, more.name) == (5, "pfedrec")


class ByHand(DualPer, FedMF):
    """A class of its own, not one that `plug` made."""


def test_a_mix_in_by_hand_is_a_class_of_its_own():
    assert parts(ByHand) == (ByHand, ()) and ByHand.name == "by-hand"
