import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.channel import Link
from federec.federation.round import play
from federec.federation.scoring import score_global
from federec.federation.state import State
from federec.methods.ease import item_weights
from federec.methods.fednext import FedNext
from federec.methods.fednext_projected import FedNextProjected
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer
from federec.stages.secure_sum import SecureSum

ALL = {"half_lives": ((1.0, 6.0, 0.0),), "target": (2.0,), "l2": (3.0,), "rise": 2.0}


def played(method, split, rounds=None, link=None):
    """The state after some rounds, all by default, and the reports."""
    devices = Devices.of(split, False)
    state = State.start(method, split.data.n_items, len(devices), 0)
    everyone = torch.arange(len(devices))
    numbers = range(1, (rounds or method.most_rounds) + 1)
    reports = [play(method, state, devices, everyone, 0, round_, link=link) for round_ in numbers]
    return state, reports


def scores(method, split, state):
    """Of everything for everybody."""
    devices = Devices.of(split, False)
    items = torch.arange(split.data.n_items).expand(len(devices), -1)
    return score_global(method, state, torch.arange(len(devices)), items, devices)


def sequences(split):
    return [split.train[a:b].tolist() for a, b in zip(split.ptr[:-1], split.ptr[1:], strict=True)]


def fade(half_life, age, never):
    return 0.5 ** (age / half_life) if half_life else never


def history_at(sequence, t, half_lives, n_items):
    """s_t of the docstring, one half-life after the other."""
    s = np.zeros((len(half_lives), n_items))
    for kind, half_life in enumerate(half_lives):
        for k in range(t):
            s[kind, sequence[k]] += fade(half_life, t - k - 1, 1.0)
    return s.ravel()


def target_at(sequence, t, half_life, n_items):
    """y_t of the docstring."""
    y = np.zeros(n_items)
    for k in range(t, len(sequence)):
        y[sequence[k]] += fade(half_life, k - t, float(k == t))
    return y


def pooled(all_sequences, half_lives, target, n_items):
    """The two sums over all positions of all sequences, position by position."""
    wide = len(half_lives) * n_items
    ss, sy = np.zeros((wide, wide)), np.zeros((wide, n_items))
    for sequence in all_sequences:
        for t in range(1, len(sequence)):
            s = history_at(sequence, t, half_lives, n_items)
            ss += np.outer(s, s)
            sy += np.outer(s, target_at(sequence, t, target, n_items))
    return ss, sy


def sums_of(state, kinds):
    """The server's sums, put together."""
    blocks = {}
    for a in range(kinds):
        for b in range(a, kinds):
            blocks[a, b] = state.server[f"sums.{a}.{b}"]
            blocks[b, a] = blocks[a, b].T
    ss = torch.cat([torch.cat([blocks[a, b] for b in range(kinds)], 1) for a in range(kinds)])
    return ss.numpy(), torch.cat([state.server[f"next.{a}"] for a in range(kinds)]).numpy()


FALLS = st.sampled_from([0.0, 0.5, 1.0, 3.0, 3.0001, 40.0])


@given(
    lengths=st.lists(st.integers(3, 14), min_size=1, max_size=4),
    half_lives=st.lists(FALLS, min_size=1, max_size=3),
    target=FALLS,
    seed=st.integers(0, 99),
)
def test_the_closed_form_is_the_sum_over_positions(split_of, lengths, half_lives, target, seed):
    random = np.random.default_rng(seed)
    split = split_of([random.permutation(14)[:length] for length in lengths], 14)
    method = FedNext(half_lives=(half_lives,), target=(target,), l2=(1.0, 2.0), blend=(0.0,))
    state, _ = played(method, split, 1)  # another l2 follows, so the server keeps the sums
    for got, expected in zip(
        sums_of(state, len(half_lives)), pooled(sequences(split), half_lives, target, 14), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_two_devices_by_hand(split_of):
    """Sequences 0 1 2 and 2 0, half-life 1, next item only. s at t = 1, 2: (1, 0, 0), (1/2, 1, 0); then (0, 0, 1)."""
    split = split_of([[0, 1, 2, 3, 4], [2, 0, 3, 4]], 5)
    method = FedNext(half_lives=((1.0,),), target=(0.0,), l2=(1.0, 2.0), blend=(0.0,))
    state, _ = played(method, split, 1)
    assert state.server["sums.0.0"][:3, :3].tolist() == [[1.25, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]
    assert state.server["next.0"][:3, :3].tolist() == [[0, 1, 0.5], [0, 0, 1], [1, 0, 0]]


def test_the_weights_are_those_of_pooled_sequences(random_split):
    split = random_split(users=60, items=40, most=30)
    method = FedNext(**ALL, blend=(0.0,))
    state, _ = played(method, split)
    ss, sy = pooled(sequences(split), ALL["half_lives"][0], 2.0, 40)
    expected = np.linalg.solve(ss + np.diag(np.repeat([3.0, 6.0, 12.0], 40)), sy)
    np.testing.assert_allclose(state.shared["weights"].flatten(0, 1), expected, rtol=0, atol=1e-5)
    ends = [history_at(one, len(one), ALL["half_lives"][0], 40) for one in sequences(split)]
    np.testing.assert_allclose(scores(method, split, state), np.stack(ends) @ expected, rtol=0, atol=1e-5)


def test_a_blend_adds_ease_with_recency_both_standardised(random_split):
    split = random_split(users=50, items=30, most=20)
    method = FedNext(**ALL, blend=(0.7,), ease_l2=5.0, recency=3.0, floor=0.2)
    state, _ = played(method, split)
    x = torch.zeros(50, 30)
    faded = torch.zeros(50, 30)
    for user, sequence in enumerate(sequences(split)):
        x[user, sequence] = 1.0
        for age, item in enumerate(reversed(sequence)):
            faded[user, item] = 0.5 ** (age / 3) + 0.2
    ease = faded @ item_weights(x.T @ x, 5.0)
    plain_method = FedNext(**ALL, blend=(0.0,))
    plain = scores(plain_method, split, played(plain_method, split)[0])
    a, b = ((s - s.mean(1, keepdim=True)) / s.std(1, correction=0, keepdim=True) for s in (plain, ease))
    torch.testing.assert_close(scores(method, split, state), a + 0.7 * b, rtol=0, atol=1e-4)


def test_the_order_of_a_history_matters(split_of):
    """Two devices with the same items in another order are told other things."""
    others = [[0, 1, 2, 5, 6], [0, 1, 2, 5, 6], [2, 1, 0, 4, 6]]
    split = split_of([*others, [0, 1, 7, 8], [1, 0, 7, 8]], 9)
    method = FedNext(half_lives=((1.0,),), target=(0.0,), l2=(0.1,), blend=(0.0,))
    scored = scores(method, split, played(method, split)[0])
    assert scored[3].argmax() == 2  # after 0 came 1, then 2
    assert scored[4, 1] > scored[3, 1]


TRIALS = {"half_lives": ((1.0, 0.0), (2.0, 9.0)), "target": (0.0,), "l2": (1.0, 5.0), "blend": (0.0, 0.5)}


def test_a_round_is_a_trial_and_only_new_sums_ask_the_devices(split_of):
    """Six items: a whole matrix is 36 values, a symmetric one 21. Two half-lives: 2 symmetric and 1 whole matrix of
    histories, 2 whole ones of targets; at first also the co-occurrence. Histories of 3 and 1 items receive rows of 6
    values for each half-life and for EASE."""
    split = split_of([[0, 1, 2, 4, 5], [3, 4, 5]], 6)
    method = FedNext(**TRIALS)
    assert method.most_rounds == 8
    trials = [tuple(method.turn(round_)[:4]) for round_ in (1, 2, 3, 5)]
    first, second = TRIALS["half_lives"]
    assert trials == [(first, 0, 1, 0), (first, 0, 1, 0.5), (first, 0, 5, 0), (second, 0, 1, 0)]
    state, reports = played(method, split)
    sums = 2 * 21 + 36 + 2 * 36
    assert [report.up_bytes for report in reports] == [4 * (sums + 21), 0, 0, 0, 4 * sums, 0, 0, 0]
    assert [report.down_bytes for report in reports] == [4 * 2 * 3 * 6, 0] * 4
    assert state.shared["half_lives"].tolist() == [2.0, 9.0] and state.shared["blend"].tolist() == [0.5]


def test_sums_are_kept_only_while_they_are_needed(random_split):
    split, method = random_split(), FedNext(**TRIALS)
    kept = [played(method, split, rounds)[0].server["next.0"].numel() > 0 for rounds in range(1, 9)]
    assert kept == [True, True, False, False, True, True, False, False]


def test_the_last_trial_is_the_one_alone(random_split):
    split = random_split(users=30, items=30)
    alone = FedNext(half_lives=((2.0, 9.0),), target=(0.0,), l2=(5.0,), blend=(0.5,))
    many = FedNext(**TRIALS)
    expected, got = (scores(method, split, played(method, split)[0]) for method in (alone, many))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("blocks", [2, 3, 10, 99])
def test_blocks_send_the_same_in_more_rounds(random_split, blocks):
    split, settings = random_split(), ALL | {"blend": (0.5,)}
    whole, in_blocks = FedNext(**settings), FedNext(**settings, blocks=blocks)
    assert in_blocks.most_rounds == {2: 2, 3: 3}.get(blocks, 10)
    (expected, (dense,)), (state, reports) = played(whole, split), played(in_blocks, split)
    for name, value in expected.shared.items():
        assert torch.equal(state.shared[name], value)
    assert sum(report.up_bytes for report in reports) == dense.up_bytes
    assert max(report.up_bytes for report in reports) < dense.up_bytes
    assert [report.down_bytes for report in reports] == [0] * (len(reports) - 1) + [dense.down_bytes]


@pytest.mark.parametrize("sweeps", [0, 2])
def test_projected_weights_are_those_of_pooled_rows(random_split, sweeps):
    split = random_split(users=60, items=40, most=30)
    method = FedNextProjected(**ALL, dim=5, sweeps=sweeps)
    assert method.most_rounds == sweeps + 1
    state, reports = played(method, split)
    rows = state.shared["rows"].double().numpy()
    project = np.kron(np.eye(3), rows)
    ss, sy = pooled(sequences(split), ALL["half_lives"][0], 2.0, 40)
    system = project.T @ ss @ project + np.diag(np.repeat([3.0, 6.0, 12.0], 5))
    expected = np.linalg.solve(system, project.T @ sy)
    np.testing.assert_allclose(state.shared["weights"].flatten(0, 1), expected, rtol=0, atol=1e-5)
    ends = np.stack([history_at(one, len(one), ALL["half_lives"][0], 40) for one in sequences(split)])
    np.testing.assert_allclose(scores(method, split, state), ends @ project @ expected, rtol=0, atol=1e-5)
    own = np.diff(split.ptr).mean()
    assert reports[-1].up_bytes == 4 * (15 * 16 // 2 + 15 * 40)
    assert reports[-1].down_bytes == pytest.approx(4 * (15 * 40 + (own * 5 if sweeps else 0)))
    for report in reports[:-1]:
        assert report.up_bytes == 4 * 40 * 5 and report.down_bytes == pytest.approx(4 * own * 5)


def test_learned_rows_span_what_most_items_share(random_split):
    """Many sweeps give the leading eigenvectors of the co-occurrence."""
    split = random_split(users=60, items=30, most=20)
    state, _ = played(FedNextProjected(dim=3, sweeps=60), split, 60)
    x = np.zeros((60, 30))
    for user, sequence in enumerate(sequences(split)):
        x[user, sequence] = 1
    leading = np.linalg.eigh(x.T @ x)[1][:, -3:]
    angles = np.linalg.svd(leading.T @ state.shared["rows"].double().numpy())[1]
    np.testing.assert_allclose(angles, 1, atol=1e-2)


def test_rows_may_be_wider_than_the_catalogue(random_split):
    """Then nothing is lost, and the scores are those without a projection."""
    split = random_split(users=40, items=20)
    wide, whole = FedNextProjected(**ALL, dim=25), FedNext(**ALL, blend=(0.0,))
    got, expected = (scores(method, split, played(method, split)[0]) for method in (wide, whole))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_projected_sums_are_those_of_single_messages(random_split, monkeypatch):
    """Also where a history is longer than a block of positions, and where it is one item."""
    split = random_split(users=30, items=200, least=1, most=150)
    method = FedNextProjected(**ALL, dim=5)
    together, _ = played(method, split)
    monkeypatch.setattr(FedNextProjected, "adds_up", lambda self, round_: False)
    apart, _ = played(method, split)
    torch.testing.assert_close(together.shared["weights"], apart.shared["weights"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [FedNext(**ALL, blend=(0.5,)), FedNextProjected(**ALL, dim=6)], ids=lambda m: m.name)
def test_it_works_from_secure_sums(random_split, method):
    split = random_split(users=40, items=30)
    link = Link.of(method, (SecureSum(),))
    (plain, _), (hidden, reports) = played(method, split), played(method, split, link=link)
    torch.testing.assert_close(hidden.shared["weights"], plain.shared["weights"], rtol=0, atol=1e-3)
    assert reports[-1].up_bytes > 0


def test_a_trial_spoilt_by_noise_ranks_nothing_and_another_counts(random_split):
    method = build("fednext", ["ldp"], {"laplace": 50.0, "l2": (1.0, 1e6), "blend": (0.0,)})
    worker = trainer(method, random_split(), protocol("clean"), 0)
    spoilt, other = (worker.play(round_).valid["sampled"]["hr@20"] for round_ in (1, 2))
    assert spoilt == 0 < other


@pytest.mark.parametrize(
    "settings",
    [
        *({"l2": ()}, {"l2": (0.0,)}, {"half_lives": ()}, {"half_lives": ((),)}, {"half_lives": ((-1.0,),)}),
        *({"half_lives": ((1.0,), (1.0, 2.0))}, {"target": ()}, {"target": (-1.0,)}, {"blend": ()}, {"blend": (-1.0,)}),
        *({"rise": 0.0}, {"blocks": 0}, {"negatives": 4}),
    ],
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedNext(**settings)


def test_it_learns_tastes():
    split = leave_one_out(generate(users=300, items=500, interactions=12_000))
    popular = trainer(build("popularity"), split, protocol("clean"), 0).play(1).test["sampled"]
    worker = trainer(FedNext(), split, protocol("clean"), 0)
    assert worker.play(1).test["sampled"]["hr@10"] > popular["hr@10"] + 0.05


def test_an_items_score_does_not_depend_on_what_else_is_asked_for(random_split):
    """Both parts of a blend are standardised over all items, not over those of the question."""
    split = random_split(users=8, items=30, least=5, most=9)
    method, devices = FedNext(blend=[0.7]), Devices.of(split, False)
    state, users = State.start(method, 30, len(devices), 0), torch.arange(len(devices))
    play(method, state, devices, users, 0, 1)
    every, few = (torch.arange(n).expand(len(users), -1) for n in (30, 5))
    whole, part = (score_global(method, state, users, items, devices=devices) for items in (every, few))
    assert part.std() > 0 and torch.allclose(whole[:, :5], part, atol=1e-6)
