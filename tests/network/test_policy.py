"""A device gives what its policy allows, and nothing more."""

import math

import pytest

from federec.errors import UserError
from federec.federation.channel import Channel
from federec.network.ledger import Spent
from federec.network.policy import COHORT, HUB, Policy, epsilon, rho, smallest_cohort, weaker
from federec.runs.config import RunConfig
from federec.stages.base import Promise
from federec.stages.registry import parse, stage

CONFIG = RunConfig.checked(method="pfedrec")
HIDDEN = ("secure-sum",)
NOISY = ("clip:norm=1", "dense", "gaussian:scale=100")
BOUNDLESS = [
    ("clip:norm=1", "gaussian:scale=9"),
    ("dense", "gaussian:scale=9"),
    ("dense",),
    ("clip:norm=1", "dense", "top-rows", "gaussian:scale=9"),
    ("clip:norm=1,power=1", "dense", "gaussian:scale=9"),
]


def channel(*texts):
    return Channel(tuple(map(stage, parse(texts))))


def allow(policy, *stages, config=CONFIG, run="films", round_=1, users=1, spent=None):
    policy.allow(config, channel(*stages), run, round_, users, spent or Spent())


def test_by_default_a_device_only_sends_as_part_of_a_secure_sum():
    allow(Policy(), *HIDDEN)
    allow(Policy(), "clip:norm=1", *HIDDEN)
    for stages in ((), ("dense",), ("clip:norm=1", "gaussian:scale=5"), NOISY):
        with pytest.raises(UserError, match="without secure-sum"):
            allow(Policy(), *stages)


def test_a_hub_may_send_in_the_clear_and_so_may_a_device_whose_owner_says_so():
    allow(Policy(), users=HUB)
    with pytest.raises(UserError):
        allow(Policy(), users=HUB - 1)
    allow(Policy(clear=True))
    with pytest.raises(UserError, match="without secure-sum"):
        allow(Policy(clear=True, channel=parse(HIDDEN)))


def test_only_the_pinned_method_is_run():
    with pytest.raises(UserError, match="asks for fedmf; this device runs pfedrec"):
        allow(Policy(), *HIDDEN, config=RunConfig.checked(method="fedmf"))
    with pytest.raises(UserError, match=r"asks for pfedrec\+plgc"):
        allow(Policy(), *HIDDEN, config=RunConfig.checked(method="pfedrec", plugins=("plgc",)))
    allow(Policy(plugins=("plgc",)), *HIDDEN, config=RunConfig.checked(method="pfedrec", plugins=("plgc",)))


def test_rounds_are_counted_over_all_runs():
    allow(Policy(rounds=3), *HIDDEN, round_=3, spent=Spent(rounds=3))
    for given in ({"round_": 4}, {"round_": 1, "spent": Spent(rounds=4)}):
        with pytest.raises(UserError, match="takes part in 3 rounds"):
            allow(Policy(rounds=3), *HIDDEN, **given)


def test_by_default_a_device_takes_part_in_one_run():
    allow(Policy(), *HIDDEN, spent=Spent(runs=("films",)))
    with pytest.raises(UserError, match=r"takes part in 1 run\(s\)"):
        allow(Policy(), *HIDDEN, spent=Spent(runs=("books",)))
    allow(Policy(runs=2), *HIDDEN, spent=Spent(runs=("books",)))


def test_noise_lasts_until_the_budget_is_used_up():
    policy, one = Policy(budget=1.0, channel=parse(NOISY)), rho(channel(*NOISY))
    assert one == pytest.approx(2 * (1 / 100) ** 2)
    messages = 0
    while epsilon((messages + 1) * one) <= 1.0:
        allow(policy, *NOISY, spent=Spent(rho=messages * one))
        messages += 1
    assert messages > 10
    with pytest.raises(UserError, match="own update"):
        allow(policy, *NOISY, spent=Spent(rho=messages * one))
    with pytest.raises(UserError, match="without gaussian noise of scale 100"):
        allow(policy, "clip:norm=1", "dense", "gaussian:scale=99")
    with pytest.raises(UserError, match="does not clip to 1"):
        allow(policy, "clip:norm=2", "dense", "gaussian:scale=100")


def test_epsilon_is_that_of_zero_concentrated_differential_privacy():
    """Bun and Steinke 2016, proposition 1.3, worked by hand for rho = 1/2 and delta = exp(-8)."""
    assert epsilon(0.5, math.exp(-8)) == pytest.approx(0.5 + 2 * 2)


@pytest.mark.parametrize("stages", BOUNDLESS)
def test_noise_that_bounds_nothing_has_no_price(stages):
    assert rho(channel(*stages)) is None
    with pytest.raises(UserError, match="own update"):
        allow(Policy(budget=1e9, channel=()), *stages)


def test_a_weaker_promise_is_named():
    pinned = Promise(clip=1.0, noise="gaussian", scale=2.0, hidden=True)
    assert weaker(pinned, pinned) == "" == weaker(pinned._replace(clip=0.5, scale=3.0), pinned)
    assert "secure-sum" in weaker(pinned._replace(hidden=False), pinned)
    assert "clip" in weaker(pinned._replace(clip=None), pinned)
    assert "noise" in weaker(pinned._replace(noise="laplace"), pinned)


def test_the_policy_is_told_in_sentences():
    words = " ".join(Policy().words(1))
    assert "never runs code" in words and f"at least {COHORT} certified devices" in words
    assert "may read this device's own updates" in " ".join(Policy(clear=True).words(1))
    assert "epsilon 3" in " ".join(Policy(budget=3.0, channel=parse(NOISY)).words(1))
    assert "clipped to norm 1" in " ".join(Policy(channel=parse(("clip:norm=1", "secure-sum"))).words(1))


@pytest.mark.parametrize(("nodes", "cohort"), [(1, 2), (2, 2), (3, 2), (5, 4), (12, 8), (15, 10), (1000, 10)])
def test_a_third_of_known_nodes_may_be_away(nodes, cohort):
    assert smallest_cohort(nodes) == cohort
