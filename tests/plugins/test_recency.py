import pytest
import torch

from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.fedmf import FedMF
from federec.plugins.base import plug
from federec.plugins.recency import Recency
from federec.plugins.registry import build


def test_a_step_worked_by_hand(split_of):
    """One device with positives 0 (older) and 1, nothing else to draw; p = 1, rows 0: every sigma is 1/2.

    weights    half-life 1, least 0.5: 2^-1 + 0.5 = 1 and 2^0 + 0.5 = 1.5; made 1 on average: 0.8 and 1.2
    rows       0 + rate * weight * (1 - 1/2) / 2 * p      rate = 0.1 * 4 items * 2.5 = 1:  0.2 and 0.3
    """
    method = plug(FedMF, Recency)(dim=1, negatives=0, lr=0.1, item_lr_factor=2.5, half_life=1.0, least=0.5)
    devices = Devices.of(split_of([[0, 1, 2, 3]], 4), close_held_out=True)
    state = State({"items": torch.zeros(4, 1)}, {"user": torch.ones(1, 1)})
    play(method, state, devices, torch.tensor([0]), 0, 1)
    assert state.shared["items"].squeeze().tolist() == pytest.approx([0.2, 0.3, 0, 0])


def test_equal_weights_change_nothing(random_split):
    """With a half-life far beyond any history all positives weigh 1."""
    devices = Devices.of(random_split(users=6, items=12, least=5, most=9), False)
    states = [State.start(FedMF(dim=3), 12, 6, seed=1) for _ in range(2)]
    for method, state in zip((FedMF(dim=3), plug(FedMF, Recency)(dim=3, half_life=1e9)), states, strict=True):
        for round_ in (1, 2):
            play(method, state, devices, torch.arange(6), 1, round_)
    torch.testing.assert_close(states[1].shared["items"], states[0].shared["items"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("setting", ["half_life", "least"])
def test_weights_must_be_positive(setting):
    with pytest.raises(UserError, match=setting):
        build("fedmf", ["recency"], {setting: 0})
