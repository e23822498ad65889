import weakref
from functools import partial

import numpy as np
import pytest
import torch

from federec.checks.engines import engines_agree
from federec.checks.rounds import contents
from federec.cohort.draw import Devices
from federec.data.interactions import Interactions
from federec.data.split import leave_one_out
from federec.evaluation.protocols import protocol
from federec.evaluation.ranking import sampled_ranks
from federec.federation import fused_base
from federec.federation.engine import fused_round, neighbours
from federec.federation.round import play
from federec.federation.scoring import Neighbour, score_own
from federec.federation.state import State
from federec.federation.threads import deal
from federec.methods.fednext import FedNext
from federec.methods.fedrap import FedRAP
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer

METHODS = ("pfedrec", "fedmf", "fedrecon", "local-only")
PLUGINS = ((), ("dualper",), ("sam",), ("ldp",), ("dualper", "sam"), ("sam", "dualper", "ldp"))
MIXED = [("pfedrec", ("plgc",)), ("fedmf", ("plgc", "dualper", "ldp")), ("fedrecon", ("plgc",))]
RECENT = [("pfedrec", ("recency",)), ("fedmf", ("sam", "recency", "dualper")), ("fedrecon", ("recency", "ldp"))]
RECENT += [("local-only", ("recency",))]
CASES = [(name, plugins) for name in METHODS for plugins in PLUGINS] + MIXED + RECENT
TRAINED = [("pfedrec", ()), ("fedmf", ()), ("fedmf", ("dualper",)), ("fedrecon", ("dualper", "sam")), MIXED[0]]
TRAINED += [("fedrap", ("dualper",))]


@pytest.fixture(scope="module")
def devices(split_of):
    """Devices of many lengths, one of which has every item and draws no negatives."""
    random = np.random.default_rng(4)
    return Devices.of(split_of([random.permutation(60)[:n] for n in (60, 3, 4, 9, 30, 31, 12, 12, 50)], 60), True)


def both(method, devices, rounds, users):
    """States after some rounds in torch and fused, with the last reports and own scores of all items."""
    items = torch.arange(devices.n_items)
    stacked, fused = (State.start(method, devices.n_items, len(devices), 1) for _ in range(2))
    for round_ in range(1, rounds + 1):
        seen = torch.zeros(len(devices), devices.n_items)

        def observe(cohort, seen=seen):
            own = score_own(method, cohort, stacked, items.expand(len(cohort), -1))
            seen[cohort.users] = own

        slow = play(method, stacked, devices, users, 7, round_, observe)
        playing = fused_round(method, fused, devices, 7, round_)
        scores = torch.cat([playing.play(part, items.expand(len(part), -1)) for part in users.split(4)])
        quick = playing.finish()
    return stacked, fused, slow, quick, seen[users], scores


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("users", "rounds", "tolerance"), [(None, 1, 1e-4), ([1, 4, 0, 7, 8], 3, 1e-3)], ids=["all", "some"]
)
@pytest.mark.parametrize(("name", "plugins"), CASES, ids=["+".join((n, *p)) for n, p in CASES])
def test_the_kernel_plays_the_same_round(small, devices, name, plugins, users, rounds, tolerance):
    method = small(name, plugins)
    users = torch.arange(len(devices)) if users is None else torch.tensor(users)
    own = bool(method.shared())  # who keeps its rows ranks with them after the round
    assert method.fused_form(devices.n_items) is not None
    engines_agree(method, devices, users, range(1, rounds + 1), tolerance, own)


@pytest.mark.parametrize(
    ("name", "plugins", "settings"),
    [
        ("pfedrec", (), {"hidden": (4,)}),
        ("local-only", (), {"hidden": (4,)}),
        ("fedmf", ("recency", "plgc"), {}),  # a plug-in without a form is not forgotten under one that has
        ("fedmf", ("plgc", "recency"), {}),
        ("pfedrec", ("plgc", "sam"), {}),
        ("pfedrec", ("sam", "plgc"), {}),
        ("fedmf", ("dualper", "plgc"), {}),
        ("fedrap", ("plgc",), {"norm": "nuclear"}),
        ("fedrap", ("plgc", "dualper"), {}),
        ("fedrap", ("dualper", "sam"), {}),
    ],
)
def test_what_has_no_fused_form_is_left_to_torch(small, name, plugins, settings):
    assert small(name, plugins, **settings).fused_form(50) is None


@pytest.mark.parametrize("users", [range(9), (1, 4, 0, 7, 8), (3,)], ids=["all", "some", "one"])
@pytest.mark.parametrize(
    ("name", "plugins", "settings"),
    [
        ("pfedrec", (), {}),
        ("pfedrec", ("plgc",), {}),
        ("pfedrec", ("plgc",), {"mix": "fixed", "mix_weight": 0.3}),
        ("fedrap", ("dualper",), {}),
        ("fedncf", ("dualper",), {"user_lr": 2.0}),
        ("fedrecgel", ("dualper",), {"mlp_dim": 6}),
    ],
    ids=str,
)
def test_the_kernel_ranks_with_the_same_neighbours_rows(small, devices, users, name, plugins, settings):
    method, users = small(name, plugins, **settings), torch.tensor([*users])
    items = torch.arange(devices.n_items).expand(len(users), -1)
    stacked, before, after = (State.start(method, devices.n_items, len(devices), 1) for _ in range(3))
    neighbour, expected = Neighbour(), torch.zeros(len(devices), devices.n_items)

    def observe(cohort):
        expected[cohort.users] = neighbour.score(method, cohort, stacked, items[: len(cohort)])

    play(method, stacked, devices, users, 7, 1, observe, memory=1e4)
    playing = fused_round(method, after, devices, 7, 1)
    playing.play(users, items)
    playing.finish()
    scores = torch.full_like(expected, torch.nan)
    for some, score in neighbours(method, before, after, devices, users, 7, 1, 4):
        scores[some] = score(items[: len(some)])
    close(scores[users], expected[users], 1e-4)


@pytest.mark.parametrize(("name", "plugins"), [("pfedrec", ()), MIXED[0]], ids=["pfedrec", "pfedrec+plgc"])
def test_threads_rank_as_the_scores_do(small, devices, name, plugins):
    method, users = small(name, plugins), torch.arange(len(devices)).flip(0)
    ask = torch.stack([torch.randperm(devices.n_items)[:14] for _ in users])
    begin = partial(State.start, method, devices.n_items, len(devices), 1)
    scores = fused_round(method, begin(), devices, 7, 1).play(users, ask)
    for _ in range(2):  # the second time in the same memory
        ranks = fused_round(method, begin(), devices, 7, 1).rank(users, ask, 2)
        assert torch.equal(ranks, sampled_ranks(scores.view(-1, 7)).view(-1, 2).int())


def test_the_order_of_users_is_found_once(small, devices):
    method, users = small("pfedrec"), torch.arange(len(devices))
    sums = fused_round(method, State.start(method, devices.n_items, len(devices), 1), devices, 7, 1).sums
    turn = sums.turn(users, 4)
    assert sums.turn(users, 4) is turn and torch.equal(turn.users, users[turn.places])
    assert sums.turn(users.clone(), 4) is not turn and sums.turn(users, 5) is not turn


def test_repeated_positives_weigh_by_their_newest_occurrence(small):
    random = np.random.default_rng(2)
    items = random.integers(0, 12, (6, 15)).astype(np.int32)
    users, times = np.repeat(np.arange(6, dtype=np.int32), 15), np.tile(np.arange(15.0), 6)
    data = Interactions("again", users, items.ravel(), np.arange(6), np.arange(12), times=times, repeats=True)
    devices = Devices.of(leave_one_out(data), False)
    assert len(devices.distinct) < len(devices.train)
    engines_agree(small("pfedrec", ("recency",), half_life=2.0), devices)


def test_two_threads_do_what_one_does(small, devices):
    method, users = small("pfedrec"), torch.arange(len(devices))
    _, alone, _, report, _, scores = both(method, devices, 1, users)
    torch.set_num_threads(2)
    try:
        _, shared, _, other, _, again = both(method, devices, 1, users)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(again, scores) and report.up_bytes == other.up_bytes
    assert all(torch.equal(value, shared.private[name]) for name, value in alone.private.items())
    close(shared.shared["items"], alone.shared["items"], 1e-6)  # summed in another order


@pytest.mark.parametrize("name", ["pfedrec", "fedrap"])
def test_a_number_of_threads_gives_the_same_bits_each_time(small, devices, monkeypatch, name):
    monkeypatch.setattr(fused_base, "deal", lambda costs, count, least, most: deal(costs, count, 1, most))
    method, users, states = small(name), torch.arange(len(devices)), []
    torch.set_num_threads(3)
    try:
        for _ in range(4):
            _, state, *_ = both(method, devices, 1, users)
            states.append(contents(state))
    finally:
        torch.set_num_threads(1)
    _, alone, *_ = both(method, devices, 1, users)
    assert all(torch.equal(value, state[key]) for state in states for key, value in states[0].items())
    for key, value in contents(alone).items():
        close(states[0][key], value, 1e-6)


@pytest.mark.parametrize("name", ["pfedrec", "fedrap", "fedncf", "fedpergnn"])
def test_what_a_kernel_was_given_is_free_after_the_round(small, devices, monkeypatch, name):
    given, make = [], fused_base.Outcome

    def watched(*arrays):
        given.extend(weakref.ref(array) for array in arrays)
        return make(*arrays)

    monkeypatch.setattr(fused_base, "Outcome", watched)
    method, users = small(name, **({"hidden": (7, 5, 3)} if name == "fedncf" else {})), torch.arange(len(devices))
    state, items = State.start(method, 60, len(devices), 0), torch.arange(60).expand(len(devices), -1)
    playing = fused_round(method, state, devices, 0, 1)
    playing.play(users, items)
    playing.finish()
    del playing
    devices.spare.clear()
    assert given and not any(one() is not None for one in given)


@pytest.mark.parametrize("name", [*METHODS, "fedrap"])
@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("sam", {"rho_shared": 0, "rho_private": 0}),
        ("ldp", {"laplace": 0}),
        ("plgc", {"mix": "fixed", "mix_weight": 1, "beta": 0}),
    ],
    ids=["sam", "ldp", "plgc"],
)
def test_a_plugin_that_is_off_changes_no_bit(small, devices, name, plugin, settings):
    if (name, plugin) == ("local-only", "plgc"):
        pytest.skip("does not fit")
    plain, off = small(name), small(name, (plugin,), **settings)
    states = []
    for method in (plain, off):
        state = State.start(method, devices.n_items, len(devices), 1)
        playing = fused_round(method, state, devices, 7, 1)
        playing.play(torch.arange(len(devices)), torch.zeros(len(devices), 0, dtype=torch.int64))
        playing.finish()
        states.append(state.tensors())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize(("name", "plugins"), TRAINED, ids=["+".join((n, *p)) for n, p in TRAINED])
def test_trainers_agree_and_the_review_repeats_the_round(small, random_split, name, plugins):
    split = random_split(users=60, items=150, least=6, most=40, seed=2)
    method, rules = small(name, plugins), protocol("clean")
    slow, quick = (trainer(method, split, rules, 3, 0.7, engine=engine) for engine in ("torch", "fused"))
    for round_ in (1, 2):
        expected, played = slow.play(round_), quick.play(round_)
    for metric, value in expected.test["sampled"].items():
        assert played.test["sampled"][metric] == pytest.approx(value, abs=0.02)  # one user more or less
    review = quick.review(played.model, 2)
    assert review.valid["sampled"] == played.valid["sampled"] and review.test["sampled"] == played.test["sampled"]
    other = slow.review(expected.model, 2)
    for view, metrics in other.views.items():
        assert review.views[view]["hr@20"] == pytest.approx(metrics["hr@20"], abs=0.02)
    assert review.test["full"]["hr@20"] == pytest.approx(other.test["full"]["hr@20"], abs=0.02)


QUIET = {
    "lr": 0.1,
    "item_lr": 3.0,
    "v1": 0.2,
    "v2": 0.3,
    "dim": 5,
    "weight_decay": 0.01,
    "tolerance": 0.01,
    "epochs": 5,
}
ADDITIVE = [
    {"batch": 2048},
    {"batch": 16},
    {"batch": 100, "own_lr_factor": 0.1, "schedule": "sin"},
    {"batch": 2048, "norm": "l2", "schedule": "fixed"},
    {"batch": 16, "norm": "l2", "schedule": "frac"},
    {"batch": 16, "parts": "common"},
    {"batch": 2048, "parts": "own", "schedule": "square"},
    {"batch": 4, "weight_decay": 0.15, "epochs": 9, "tolerance": 0, "v1": 0},  # rows shrink to a thousandth
]

SHARP = [
    ({"batch": 2048, "rho_shared": 0.3, "rho_private": 0.2}, ("sam",)),
    ({"batch": 16, "norm": "l2", "rho_shared": 0.1}, ("sam",)),
    ({"batch": 16, "rho_shared": 0.0, "rho_private": 0.2}, ("sam",)),
]
WEIGHTED = [
    ({"batch": 2048}, ("recency", "ldp")),
    ({"batch": 16, "norm": "l2"}, ("ldp", "recency")),
    ({"batch": 16, "rho_shared": 0.1}, ("sam", "recency", "ldp")),
    ({"batch": 16, "parts": "own"}, ("recency", "ldp")),
]
DUAL = [
    ({"batch": 2048, "lr": 0.5}, ("dualper",)),
    ({"batch": 16, "norm": "l2", "lr": 0.5}, ("recency", "dualper", "ldp")),
    ({"batch": 16, "parts": "own"}, ("dualper",)),
]
BLENDED = [
    {"batch": 2048, "beta": 0.05, "gamma": 0.5, "smoothing": 0.5},
    {"batch": 16, "norm": "l2"},
    {"batch": 16, "parts": "common", "mix": "fixed", "mix_weight": 0.3},
    {"batch": 2048, "beta": 0.0},
]


@pytest.mark.parametrize(
    ("users", "rounds", "tolerance"), [(None, 1, 1e-4), ([1, 4, 0, 7, 8], 3, 1e-3)], ids=["all", "some"]
)
@pytest.mark.parametrize(
    ("settings", "plugins"),
    [(s, ()) for s in ADDITIVE] + [(s, ("plgc",)) for s in BLENDED] + SHARP + WEIGHTED + DUAL,
    ids=str,
)
def test_the_additive_kernel_plays_the_same_round(devices, settings, plugins, users, rounds, tolerance):
    method = build("fedrap", plugins, QUIET | settings)
    assert method.fused_form(devices.n_items) is not None
    users = None if users is None else torch.tensor(users)
    engines_agree(method, devices, users, range(4, 4 + rounds), tolerance)


def test_an_item_may_be_drawn_a_thousand_times(split_of):
    """One item is open to the device, which draws it 4 * 298 times."""
    crowded, one = Devices.of(split_of([np.arange(300)], 301), True), torch.tensor([0])
    method = FedRAP(**QUIET | {"item_lr": 0.0, "lr": 0.0, "epochs": 1})
    stacked, fused = (State.start(method, 301, 1, 1) for _ in range(2))
    for state in (stacked, fused):
        state.private = {name: torch.zeros_like(value) for name, value in state.private.items()}  # every loss is log 2
    slow = play(method, stacked, crowded, one, 7, 4)
    playing = fused_round(method, fused, crowded, 7, 4)
    playing.play(one, one.new_zeros(1, 0))
    assert playing.finish().loss == pytest.approx(slow.loss, rel=1e-5)


def test_devices_stop_when_their_loss_has_settled(devices):
    """A device that stops at once leaves half the losses of one that never does, whatever else is in its cohort."""
    users = torch.arange(len(devices))
    for tolerance, passes in ((1e9, 2), (0, 5)):
        method = FedRAP(**QUIET | {"tolerance": tolerance})
        playing = fused_round(method, State.start(method, devices.n_items, len(devices), 1), devices, 7, 1)
        playing.play(users, users.new_zeros(len(users), 0))
        assert playing.sums.loss.sum(0)[1] == passes * len(devices)


@pytest.mark.parametrize("settings", [{"norm": "nuclear"}, {"item_lr": 1e6}], ids=str)
def test_what_the_additive_kernel_cannot_play(settings):
    assert FedRAP(**settings).fused_form(50) is None
    assert FedRAP().fused_form(50) is not None


PAIRS = [
    {"half_lives": ((1.0, 6.0, 0.0),), "target": (2.0,), "l2": (3.0,), "blend": (0.0, 0.5)},
    {"half_lives": ((3.0,), (0.0,)), "target": (0.0,), "l2": (1.0, 9.0), "blend": (0.0,)},
    {"half_lives": ((3.0, 0.0),), "l2": (5.0,), "blocks": 3},
]


@pytest.mark.parametrize("users", [None, [1, 4, 0, 7, 8]], ids=["all", "some"])
@pytest.mark.parametrize("settings", PAIRS, ids=str)
def test_the_kernel_of_pairs_plays_the_same_round(devices, settings, users):
    method = FedNext(**settings)
    users = None if users is None else torch.tensor(users)
    for rounds in range(1, method.most_rounds + 1):  # sums are dropped when nothing needs them any more
        engines_agree(method, devices, users, range(1, rounds + 1), 1e-5)


def test_threads_change_no_bit_of_sums_over_pairs(devices):
    states = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            method = FedNext(l2=(1.0, 2.0))
            state = State.start(method, devices.n_items, len(devices), 1)
            playing = fused_round(method, state, devices, 7, 1)
            torch.set_num_threads(1)  # solving must not differ
            playing.play(torch.arange(len(devices)), torch.zeros(len(devices), 0))
            playing.finish()
        finally:
            torch.set_num_threads(1)
        states.append(state.tensors())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_a_run_of_few_rounds_takes_the_kernel_of_pairs_where_there_are_many_pairs(random_split, monkeypatch):
    split, rules = random_split(), protocol("clean")
    assert trainer(FedNext(), split, rules, 0, engine="auto", rounds=2).engine_choice.used == "torch"
    monkeypatch.setattr("federec.runtimes.simulation._LONG", int((np.diff(split.ptr) ** 2).sum()))
    assert trainer(FedNext(), split, rules, 0, engine="auto", rounds=2).engine_choice.used == "fused"
