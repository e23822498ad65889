"""A run's privacy budget: the noise it asks for, and that it is never exceeded."""

import json

import pytest
import torch

pytest.importorskip("dp_accounting", reason="pip install federec[privacy]")

import federec as fr
from federec.errors import UserError
from federec.federation.round import select
from federec.federation.state import State
from federec.privacy.cost import Gaussian, epsilon
from federec.runs import loop
from federec.runs.budget import budget_of, charged_rounds, resolved
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder

NOISY = ("clip:norm=1", "central-noise:multiplier=2")


@pytest.fixture
def data(random_split):
    return random_split(users=30, items=40).data


def train(data, method=None, **how):
    return fr.train(method or fr.FedMF(dim=4), data, progress=False, engine="torch", **how)


def states(run):
    return run.point.state.tensors()


def test_without_noise_and_clipping_a_run_is_the_plain_one_to_the_last_bit(data):
    plain, quiet = train(data, rounds=3), train(data, rounds=3, channel="central-noise:multiplier=0")
    assert all(torch.equal(value, states(quiet)[name]) for name, value in states(plain).items())
    assert plain.test == quiet.test and quiet.result["privacy"]["epsilon"] is None


def test_epsilon_chooses_clipping_and_noise_and_the_result_says_so(data):
    run = train(data, rounds=4, epsilon=3.0)
    clip, noise = run.config.channel
    assert (clip["stage"], clip["quantile"], noise["stage"]) == ("clip", 0.5, "central-noise")
    told = run.result["privacy"]
    assert told["epsilon"] == pytest.approx(epsilon(Gaussian(noise["multiplier"]), 4)) and 2.9 < told["epsilon"] <= 3
    assert (told["delta"], told["accountant"], told["noise_multiplier"]) == (1e-6, "pld", noise["multiplier"])
    assert told["clip"] == clip["norm"] and told["charged_rounds"] == 4 and "choice of the best round" in told["covers"]
    assert states(run)["server:channel.norm"].numel() == 1
    assert train(data, rounds=4, epsilon=3.0, delta=1e-3).result["privacy"]["noise_multiplier"] < noise["multiplier"]


def test_devices_take_part_independently_where_that_is_counted(data):
    run = train(data, rounds=3, epsilon=3.0, participation=0.3)
    told = run.result["privacy"]
    assert told["sampling"] == 0.3
    assert (
        told["epsilon"] == pytest.approx(epsilon(Gaussian(told["noise_multiplier"], 0.3), 3)) and told["epsilon"] <= 3
    )
    counts = torch.tensor([len(select(1000, 0.3, 0, number, poisson=True)) for number in range(60)]).double()
    assert float(counts.mean()) == pytest.approx(300, abs=8) and 9 < float(counts.std()) < 21  # sqrt(1000 .3 .7) = 14.5
    assert len(select(1000, 1.0, 0, 1, poisson=True)) == 1000


def test_a_round_without_devices_is_played_all_the_same(data):
    assert any(not len(select(30, 0.01, 0, number, poisson=True)) for number in (1, 2, 3))
    run = train(data, rounds=3, participation=0.01, channel=NOISY)
    start = State.start(run.method, 40, 30, 0).shared["items"]
    assert len(run.history) == 3 and (states(run)["shared:items"] != start).all()  # noise on every value


def test_a_run_ends_before_the_round_that_would_exceed_its_limit(data, tmp_path, caplog):
    run = train(data, rounds=30, max_epsilon=4.0, channel=NOISY, out=tmp_path / "run")
    played = len(run.history)
    assert 1 < played < 30 and run.result["privacy"]["charged_rounds"] == played
    assert run.result["privacy"]["epsilon"] <= 4.0 < epsilon(Gaussian(2.0), played + 1)
    assert f"round {played + 1} would exceed epsilon 4; the run ends after round {played}" in caplog.text
    again = fr.Run.load(tmp_path / "run", data)
    assert again.result["privacy"] == run.result["privacy"]


@pytest.mark.parametrize("killed", [1, 3])
def test_a_killed_run_has_paid_and_ends_where_it_would_have_ended(data, tmp_path, monkeypatch, killed):
    whole = train(data, rounds=6, epsilon=2.0)
    wanted, seen = whole.result["privacy"], []
    real = loop._line

    def line(number, played):
        seen.append(json.loads((tmp_path / "run/model/account.json").read_text()))
        if number == killed:
            raise MemoryError("killed")
        return real(number, played)

    monkeypatch.setattr(loop, "_line", line)
    with pytest.raises(MemoryError):
        train(data, rounds=6, epsilon=2.0, out=tmp_path / "run")
    monkeypatch.undo()
    assert seen[-1] == {"rounds": killed, "last": killed}  # before the round was over
    resumed = fr.resume(tmp_path / "run", data)
    assert resumed.result["privacy"] == wanted and resumed.result["privacy"]["epsilon"] <= 2.0
    assert all(torch.equal(value, states(resumed)[name]) for name, value in states(whole).items())


def test_what_is_played_again_with_new_noise_is_paid_again(data, tmp_path):
    """As a federation's server does, whose noise nobody can repeat."""
    method = fr.FedMF(dim=4)
    config = RunConfig.checked(method, method="fedmf", settings=method.model_dump(), max_epsilon=4.0, channel=_parsed())
    most = budget_of(config, method, 40).account.most
    for _ in range(most):
        budget = budget_of(config, method, 40, RunFolder(tmp_path), repeatable=False)
        assert not budget.ends(1)
        budget.charge(1)
    spent = budget_of(config, method, 40, RunFolder(tmp_path), repeatable=False)
    assert spent.ends(1) and spent.account.rounds == most and spent.account.epsilon <= 4.0


def _parsed():
    from federec.stages.registry import parse

    return tuple(parse(NOISY))


def test_only_rounds_in_which_devices_send_are_paid(data):
    method = fr.FedEASE(l2=[10.0, 100.0, 1000.0], window=[0.0, 5.0])
    run = train(data, method, epsilon=5.0)
    assert len(run.history) == 6 and run.result["privacy"]["charged_rounds"] == 2 == charged_rounds(run.config, method)
    once = train(data, fr.FedEASE(), epsilon=5.0)
    assert once.result["privacy"]["charged_rounds"] == 1 and "quantile" not in once.config.channel[0]


def test_distributed_noise_is_solved_for_and_counted(data):
    run = train(data, rounds=2, epsilon=6.0, channel=("clip:norm=1", "distributed-noise", "secure-sum"))
    told, noise = run.result["privacy"], run.config.channel[1]
    assert noise["devices"] == 30 and told["accountant"] == "rdp" and 5.9 < told["epsilon"] <= 6.0
    assert told["epsilon"] >= epsilon(Gaussian(noise["multiplier"]), 2, by="rdp") * 0.999


@pytest.mark.parametrize(
    ("channel", "wanted", "why"),
    [
        (("clip:norm=2,power=1", "dense", "laplace:scale=4"), 3 * 2 * 2 / 4, ""),
        (("clip:norm=2", "dense", "gaussian:scale=8"), epsilon(Gaussian(2.0), 3), ""),
        (("laplace:scale=0.5",), None, "nothing bounds what one user sends"),
        (("clip:norm=2,power=1", "laplace:scale=4"), None, "which rows are sent is not hidden"),
        (("clip:norm=2", "dense", "laplace:scale=4"), None, "needs the sum of absolute values clipped"),
    ],
    ids=["laplace", "gaussian", "unclipped", "rows show", "other norm"],
)
def test_local_noise_has_an_honest_epsilon_or_none(data, channel, wanted, why):
    told = train(data, rounds=3, channel=channel).result["privacy"]
    assert told["epsilon"] == pytest.approx(wanted) if wanted else told["epsilon"] is None
    assert why in told.get("why", "")
    assert told["delta"] == (0.0 if "power" in channel[0] and wanted else 1e-6 if wanted else None)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"channel": "central-noise"}, "has no multiplier"),
        ({"channel": "central-noise:multiplier=1"}, "needs a bound on what one user sends"),
        ({"channel": ("clip:power=1", "central-noise:multiplier=1")}, "needs a bound"),
        ({"channel": ("clip:norm=1", "distributed-noise:multiplier=1")}, "put 'secure-sum' behind it"),
        (
            {"channel": ("clip:norm=1", "central-noise:multiplier=1", "quantise")},
            "longer than 'central-noise' counts on",
        ),
        ({"channel": ("clip:norm=1", "laplace", "central-noise:multiplier=1")}, "leave the other noise out"),
        ({"channel": (NOISY[0], "distributed-noise:multiplier=1,devices=31", "secure-sum")}, "may have 30; lower it"),
        ({"channel": NOISY, "aggregator": "touched-mean"}, "works on single updates"),
        ({"channel": "clip:norm=1", "max_epsilon": 3.0}, "cannot be kept: no noise"),
        ({"channel": NOISY, "max_epsilon": 0.1}, "does not pay for one round"),
        ({"method": fr.Popularity(), "epsilon": 3.0}, "trained in one place"),
        ({"method": fr.MetaMF(), "channel": NOISY}, "keeps values of single users"),
    ],
)
def test_what_would_not_be_private_is_refused(data, how, words):
    with pytest.raises(UserError, match=words):
        train(data, rounds=2, **how)


def test_a_method_that_sends_in_parts_has_no_distributed_noise(data):
    with pytest.raises(UserError, match="use 'central-noise' instead"):
        train(data, fr.FedNext(), channel=("clip:norm=1", "distributed-noise:multiplier=1", "secure-sum"))


def test_a_configuration_without_epsilon_stays_as_it_is():
    config = RunConfig.checked(method="fedmf", channel=_parsed())
    assert resolved(config, fr.FedMF(), 30, 40) is config
