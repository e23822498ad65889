import pytest
import torch

from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.channel import Link
from federec.federation.device import learn
from federec.federation.round import play
from federec.federation.state import State
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer

SMALL = {"dim": 4}
BASES = {"pfedrec": SMALL, "fedmf": SMALL, "fedals": SMALL, "fedease": {}}


def rounds(method, devices, count=2):
    state = State.start(method, devices.n_items, len(devices), 1)
    for round_ in range(1, count + 1):
        play(method, state, devices, torch.arange(len(devices)), 1, round_)
    return state


def noise_of(devices, round_=1, seed=1, users=12, laplace=0.3):
    """What the plug-in adds to the rows of PFedRec, by user and item."""
    added = {}
    method = build(
        "pfedrec", ("ldp",), {**SMALL, "laplace": laplace, "lr": 0.0}
    )  # nothing is learned: only noise is sent
    state = State.start(method, devices.n_items, len(devices), seed)

    def deliver(update, users):
        for row, (device, item) in enumerate(zip(update.owner.tolist(), update.ids.tolist(), strict=True)):
            added[int(users[device]), item] = update.rows["items"][row]

    learn(method, state, devices, torch.arange(users), seed, round_, Link.of(method).channel, deliver)
    return added


@pytest.mark.parametrize("name", BASES)
def test_without_noise_the_base_method_remains_bit_for_bit(name, random_split):
    devices = Devices.of(random_split(), False)
    plain = rounds(build(name, (), BASES[name]), devices).tensors()
    silent = rounds(build(name, ("ldp",), {**BASES[name], "laplace": 0}), devices).tensors()
    assert plain.keys() == silent.keys()
    assert all(torch.equal(value, silent[key]) for key, value in plain.items())


def test_noise_changes_what_the_server_gets_and_nothing_on_the_device(random_split):
    devices = Devices.of(random_split(), False)
    plain, noisy = (rounds(build("pfedrec", p, SMALL), devices, 1) for p in ((), ("ldp",)))
    assert not torch.equal(plain.shared["items"], noisy.shared["items"])
    assert all(torch.equal(value, noisy.private[name]) for name, value in plain.private.items())


def test_noise_is_a_pure_function_of_seed_round_user_and_item(random_split):
    devices = Devices.of(random_split(), False)
    first, again, alone = noise_of(devices), noise_of(devices), noise_of(devices, users=3)
    assert all(torch.equal(value, again[pair]) for pair, value in first.items())
    assert all(torch.equal(value, first[pair]) for pair, value in alone.items())
    for other in (noise_of(devices, round_=2), noise_of(devices, seed=2)):
        shared = first.keys() & other.keys()
        assert shared and not any(torch.equal(first[pair], other[pair]) for pair in shared)
    assert len({float(value) for row in first.values() for value in row}) > 0.99 * 4 * len(first)


def test_twice_the_scale_is_twice_the_noise(random_split):
    devices = Devices.of(random_split(), False)
    one, two = noise_of(devices, laplace=0.3), noise_of(devices, laplace=0.6)
    assert all(torch.allclose(2 * one[pair], two[pair], atol=1e-5) for pair in one)


@pytest.mark.parametrize("scale", [-0.1, float("nan"), float("inf")])
def test_a_senseless_scale_is_refused(scale):
    with pytest.raises(UserError, match="setting laplace="):
        build("pfedrec", ["ldp"], {"laplace": scale})


@pytest.mark.parametrize("name", ["pfedrec", "fedmf"])
def test_without_noise_a_run_is_that_of_the_base_method_whatever_engine_plays_it(name, random_split):
    split = random_split(users=30, items=150, least=3, most=25)
    plain, silent, noisy = (
        trainer(build(name, plugins, settings), split, protocol("paper"), 1)
        for plugins, settings in (((), {}), (("ldp",), {"laplace": 0}), (("ldp",), {"laplace": 0.5}))
    )
    results = [[worker.play(round_).test for round_ in (1, 2)] for worker in (plain, silent, noisy)]
    assert results[0] == results[1]
    assert all(torch.equal(value, silent.state.tensors()[key]) for key, value in plain.state.tensors().items())
    assert not torch.equal(plain.state.shared["items"], noisy.state.shared["items"])
