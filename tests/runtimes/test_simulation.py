import numpy as np
import pytest
import torch

from federec.checks.runs import reviews_repeat, scores_are_each_users_own
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.evaluator import Evaluator
from federec.evaluation.protocols import protocol
from federec.federation.round import select
from federec.methods.base import DeviceMethod
from federec.methods.ease import EASE
from federec.methods.registry import METHODS
from federec.plugins.registry import build
from federec.runtimes import simulation
from federec.runtimes.engines import Fused
from federec.runtimes.recommender import Recommender
from federec.runtimes.simulation import trainer

ROUNDS = (1, 2)


@pytest.fixture(scope="module")
def split(random_split):
    return random_split(users=30, items=150, least=2, most=25)


@pytest.mark.thorough
@pytest.mark.parametrize(("rules", "participation"), [("clean", 1.0), ("paper", 0.3)])
def test_a_review_repeats_what_was_measured_in_the_round(device_method, split, rules, participation):
    assert reviews_repeat(device_method, split, rules, participation)


@pytest.fixture(scope="module")
def review(device_method, split):
    worker = trainer(device_method, split, protocol("clean"), 1)
    return worker.review(worker.play(1).model, 1)


def test_a_review_has_a_view_for_rows_tuned_in_the_round(device_method, review):
    kinds = {"sampled", "sampled_light", "full", "full_light"}
    assert review.valid.keys() == kinds
    assert review.test.keys() == kinds | {"full_cold_items"}  # some held-out items nobody trains on
    if device_method.view == "own":
        assert set(review.views) == {"own", "global", "random"}
        assert review.views["own"] == review.test["sampled"]
    else:
        assert review.views == {}


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if not issubclass(m, DeviceMethod)])
def test_what_holds_for_a_centralised_method(name, split):
    method = METHODS[name]()
    assert reviews_repeat(method, split, "clean")
    assert scores_are_each_users_own(method, split)
    worker = trainer(method, split, protocol("clean"), 1)
    played = worker.play(1)
    assert played.up_bytes is None and worker.review(played.model, 1).views == {}


def test_a_fresh_history_has_the_validation_items(split):
    worker = trainer(EASE(l2=[3.0]), split, protocol("clean"), 1)
    model = worker.play(1).model
    review = worker.review(model, 1)
    weights = (
        model.shared["weights"].numpy() if "weights" in model.shared else next(iter(model.shared.values())).numpy()
    )
    for row, user in enumerate(review.ranks["users"].tolist()):
        train, valid = (set(items.tolist()) for items in _items(split, user))
        test = int(split.test.first(np.array([user]))[0])
        for name, history in (("test full", train), ("fresh full", train | valid)):
            scores = sum(weights[item] for item in history)
            others = [item for item in range(split.data.n_items) if item not in train | valid | {test}]
            worse = int(sum(scores[item] >= scores[test] - 1e-4 for item in others))
            better = int(sum(scores[item] > scores[test] + 1e-4 for item in others))
            assert better <= review.ranks[name][row] <= worse
    assert review.fresh.keys() == review.test.keys()
    assert review.fresh != review.test


def _items(split, user):
    train = split.train[split.ptr[user] : split.ptr[user + 1]]
    return train, split.valid.items[split.valid.ptr[user] : split.valid.ptr[user + 1]]


def test_only_what_reads_its_history_has_something_fresh_to_read(device_method, review):
    recalls = type(device_method).recall is not DeviceMethod.recall and device_method.name != "metamf"  # by its number
    assert bool(review.fresh) == device_method.reads_history == recalls


@pytest.mark.parametrize("name", ["fedmf", "pfedrec", "fedals", "fedrap"])
def test_a_device_learns_from_what_is_fresh_and_keeps_it(small, split, name):
    plain, stepping = (trainer(small(name), split, protocol("clean"), 1, fresh_steps=steps) for steps in (0, 1))
    model, same = plain.play(1).model, stepping.play(1).model
    review, renewed = plain.review(model, 1), stepping.review(same, 1)
    assert not review.fresh and renewed.test == review.test  # the ordinary ranking does not change
    assert not torch.equal(renewed.ranks["fresh full"], renewed.ranks["test full"])
    for one, other in zip(plain.state.private.values(), stepping.state.private.values(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(plain.state.shared.values(), stepping.state.shared.values(), strict=True):
        assert torch.equal(one, other)


def test_only_devices_take_fresh_steps(split):
    with pytest.raises(UserError, match="'ease' is trained in one place; only devices can take --fresh-steps"):
        trainer(EASE(), split, protocol("clean"), 1, fresh_steps=1)


def test_the_views_are_measured_apart(small, split):
    worker = trainer(small("pfedrec"), split, protocol("paper"), 1)
    views = [worker.review(worker.play(round_).model, round_).views for round_ in ROUNDS]
    assert any(view["own"] != view["global"] for view in views)
    assert any(view["own"] != view["random"] for view in views)


def test_everyone_is_evaluated_when_a_few_take_part(device_method, split):
    worker = trainer(device_method, split, protocol("clean"), 1, participation=0.3)
    ranks = worker.evaluator.sampled()
    worker.evaluator.sampled = lambda: ranks
    assert len(select(30, 0.3, 1, 1)) == 9
    worker.play(1)
    assert len(ranks.missing()) == 0 and len(split.evaluated) > 9


@pytest.mark.parametrize(
    ("name", "engine"),
    [("pfedrec", "torch"), ("pfedrec", "fused"), ("fedncf", "fused"), ("ncf", "torch"), ("ease", "torch")],
)
def test_a_brief_round_measures_what_picks_it_and_nothing_else(small, split, name, engine):
    long, brief = (
        trainer(small(name), split, protocol("clean"), 1, engine=engine, rounds=3, brief=brief)
        for brief in (False, True)
    )
    for round_ in (1, 2, 3):
        played, told = long.play(round_), brief.play(round_)
        assert told.valid == {"full": played.valid["full"]}
        assert not told.test
    assert brief.review(told.model, 3).valid == long.review(played.model, 3).valid


@pytest.mark.parametrize(("name", "plugins"), [("pfedrec", ()), ("fedncf", ("dualper",)), ("fedmf", ())])
def test_everybody_learns_in_a_brief_round_that_ranks_a_sample(small, random_split, name, plugins):
    """Also those whose rows are their own and who are not in the sample: they are not ranked at all."""
    split = random_split(users=230, items=3000)
    long, brief, stacked = (
        trainer(small(name, plugins), split, protocol("clean"), 1, engine=engine, rounds=20, brief=brief)
        for engine, brief in (("fused", False), ("fused", True), ("torch", True))
    )
    assert brief.selection.schedule.users < len(brief.evaluator.users)
    for round_ in (1, 2):
        played = long.play(round_)
        for other in (brief.play(round_), stacked.play(round_)):
            assert other.loss == pytest.approx(played.loss, rel=1e-4)
            assert other.valid == {"full": pytest.approx(played.valid["full"])}
    for other in (brief, stacked):
        for part in ("shared", "private"):
            for key, value in getattr(long.state, part).items():
                torch.testing.assert_close(getattr(other.state, part)[key], value, rtol=1e-3, atol=1e-5)


def test_what_is_picked_by_candidates_measures_them_in_a_brief_round_too(small, split):
    worker = trainer(small("fedmf"), split, protocol("paper"), 1, rounds=3, brief=True)
    assert "sampled" in worker.play(1).valid


def test_every_round_that_tries_settings_is_ranked_for_all_users(random_split):
    method = METHODS["fedease"](l2=[float(n) for n in range(1, 25)])
    worker = trainer(method, random_split(users=230, items=60), protocol("clean"), 1, rounds=24)
    assert worker.selection.schedule == (len(worker.evaluator.users), 1)


def test_ncf_ranks_as_devices_do(random_split):
    """Candidates in every round, pair by pair; all items only in some."""
    worker = trainer(METHODS["ncf"](dim=4), random_split(users=30, items=3000), protocol("clean"), 1, rounds=20)
    assert ["full" in worker.play(round_).valid for round_ in (1, 2, 3)] == [True, True, False]
    users, items = worker.evaluator.users, worker.evaluator.both[:, 0]
    known = worker.scores(worker.state, users).gather(1, items)
    torch.testing.assert_close(worker._candidates(users, items), known)


@pytest.mark.parametrize("participation", [1.0, 0.3])
@pytest.mark.parametrize(
    ("name", "engine"),
    [("pfedrec", "torch"), ("pfedrec", "fused"), ("fedmf", "torch"), ("fedmf", "fused"), ("popularity", "torch")],
)
def test_a_sample_of_users_is_ranked_as_among_all(small, split, name, engine, participation):
    """Evaluating fewer changes nothing but who is counted; every device trains in any case."""
    method = small(name)
    everyone, some = (
        trainer(method, split, protocol("clean"), 1, participation, engine=engine, evaluate_users=users)
        for users in (None, 8)
    )
    rows = everyone.evaluator.row[some.evaluator.users]
    for round_ in ROUNDS:
        models = [worker.play(round_).model for worker in (everyone, some)]
        # By the kernel, devices that are not asked for scores are added up last: the sum may round differently.
        for one, other in zip(*(worker.state.tensors().values() for worker in (everyone, some)), strict=True):
            torch.testing.assert_close(one, other)
    whole, part = (w.review(m.copy(), 2).ranks for w, m in zip((everyone, some), models, strict=True))
    for kind in ("users", "valid sampled", "valid full", "test sampled", "test full"):
        ranks = part[kind]
        assert len(ranks) == 8
        assert (ranks - whole[kind][rows]).abs().sum() <= 1, kind


@pytest.mark.parametrize("name", ["fedals", "popularity"])
def test_a_method_without_a_kernel_refuses_the_fused_engine(small, split, name):
    with pytest.raises(UserError, match=r"cannot run on the fused engine: .*; leave the engine out"):
        trainer(small(name), split, protocol("clean"), 1, engine="fused")


def test_a_long_run_takes_the_kernel_and_a_short_one_does_not(small, split):
    short, long = (
        trainer(small("pfedrec"), split, protocol("clean"), 1, engine="auto", rounds=rounds) for rounds in (1, 10**6)
    )
    assert short.engine_choice == ("torch", "the run is too short to repay compiling a kernel")
    assert long.engine_choice == ("fused", "'pfedrec' has a kernel")


@pytest.mark.parametrize(
    ("ready", "played_by", "used"),
    [(False, None, "torch"), (True, None, "fused"), (True, "torch", "torch"), (False, "fused", "fused")],
)
def test_a_run_of_medium_length_takes_a_kernel_that_was_compiled_before(
    small, split, monkeypatch, ready, played_by, used
):
    monkeypatch.setattr(simulation, "_LOADABLE", 0)
    monkeypatch.setattr(Fused, "compiled", lambda *_: ready)
    worker = trainer(small("pfedrec"), split, protocol("clean"), 1, engine="auto", rounds=1, played_by=played_by)
    assert worker.engine_choice.used == used
    assert isinstance(worker.engine, Fused) == (used == "fused")


@pytest.mark.thorough
def test_scores_of_a_user_are_what_was_ranked(device_method, split):
    worker = trainer(device_method, split, protocol("clean"), 1)
    played = worker.play(1)
    asked = Recommender(split.data, worker, played.model, 1)
    table = torch.from_numpy(asked.scores(np.arange(30), np.arange(150)))
    assert table.shape == (30, 150)
    ranks = Evaluator(split, 1).sampled()
    ranks.add(torch.arange(30), lambda items: table.gather(1, items))
    valid, test = ranks.metrics()
    assert valid["sampled"] == pytest.approx(played.valid["sampled"], abs=0.03)  # a near tie may fall the other way
    assert test["sampled"] == pytest.approx(played.test["sampled"], abs=0.03)


@pytest.mark.thorough
def test_runs_are_the_same_every_time_and_seeds_differ(device_method, split):
    workers = [trainer(device_method, split, protocol("clean"), seed) for seed in (1, 1, 2)]
    metrics = [worker.play(1).test for worker in workers]
    first, again, other = (worker.state.tensors() for worker in workers)
    assert metrics[0] == metrics[1]
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    starts = {**device_method.shared(), **device_method.private()}.values()
    random = device_method.negatives > 0 or any(param.init != "zeros" for param in starts)
    assert random == any(not torch.equal(value, other[name]) for name, value in first.items())


@pytest.fixture(scope="module")
def tastes():
    return leave_one_out(generate(users=500, items=800, interactions=30_000))


def test_pfedrec_beats_its_untrained_start_and_popularity_on_tastes(tastes):
    idle, popular, reached, losses = course("pfedrec", tastes, rounds=26)
    assert idle["hr@10"] < 0.15  # ten in a hundred by chance
    assert reached["hr@10"] > max(idle["hr@10"] + 0.2, popular["hr@10"] + 0.03)
    assert reached["ndcg@10"] > max(idle["ndcg@10"] + 0.15, popular["ndcg@10"])
    assert losses[-1] < 0.6 * losses[0]


def test_fedmf_beats_its_untrained_start_on_tastes(tastes):
    idle, _, reached, losses = course("fedmf", tastes, rounds=3)
    assert idle["hr@10"] < 0.15
    assert reached["hr@10"] > idle["hr@10"] + 0.15
    assert losses[-1] < 0.8 * losses[0]


def course(name, split, rounds):
    """Test metrics of an untrained start, of popularity, and after the last round; the losses of all rounds."""
    idle = trainer(build(name, [], {"lr": 0.0}), split, protocol("clean"), 0).play(1)
    popular = trainer(build("popularity"), split, protocol("clean"), 0).play(1)
    worker = trainer(build(name), split, protocol("clean"), 0, engine="fused")
    played = [worker.play(round_) for round_ in range(1, rounds + 1)]
    metrics = (one.test["sampled"] for one in (idle, popular, played[-1]))
    return *metrics, [one.loss for one in played]
