from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import optim
from torch.nn.functional import cross_entropy

import federec as fr
from federec.cohort.draw import Devices
from federec.data.split import HeldOut
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.mathematics.transformer import encode
from federec.methods.fedsasrec import FedSASRec
from federec.methods.popularity import Popularity
from federec.methods.sasrec import SASRec
from federec.runtimes.simulation import trainer

SMALL = {"dim": 8, "window": 6, "dropout": 0.0, "warm_up": 2, "schedule": 20}


def planted(split_of, users=100, items=100, seed=0):
    """Each item is followed by one fixed other item, except that a tenth of all steps begin anew somewhere else."""
    rng = np.random.default_rng(seed)
    following, histories = rng.permutation(items), []
    for _ in range(users):
        history = [int(rng.integers(items))]
        while len(history) < 20:
            item = int(following[history[-1]])
            if item in history or rng.random() < 0.1:
                item = int(rng.choice(np.setdiff1d(np.arange(items), history)))
            history.append(item)
        histories.append(np.array(history))
    return split_of(histories, items)


def learned_from_order(method, split, rounds, participation=1.0):
    """HR@10 against all items after some rounds, and that of popularity."""
    found = []
    for other, count in ((method, rounds), (Popularity(), 1)):
        worker = trainer(other, split, protocol("clean"), 0, participation)
        for round_ in range(1, count + 1):
            model = worker.play(round_).model
        found.append(worker.review(model, count).test["full"]["hr@10"])
    return found


def test_it_learns_what_follows_what(split_of):
    model, popular = learned_from_order(
        SASRec(dim=16, layers=1, window=20, dropout=0.1, lr=0.02, schedule=20, batch=40), planted(split_of), 20
    )
    assert model > 0.6 > 2 * popular


def test_steps_are_those_of_torchs_adamw(random_split):
    """Three rounds of one mini-batch against autograd, AdamW and LambdaLR."""
    split, method = random_split(users=10, items=30), SASRec(**SMALL, batch=100)
    devices, n_windows = Devices.of(split, False), method.network
    model = method.start(split, 0)
    p = {name: model[name].clone().requires_grad_() for name in n_windows.params()}
    adam = optim.AdamW(p.values(), 0.003, betas=(0.9, 0.98), weight_decay=0.01)
    rate = optim.lr_scheduler.LambdaLR(adam, lambda k: min(1, (k + 1) / 2) * max(0.05, 1 - k / 20))
    for round_ in (1, 2, 3):
        model = method.learn(model, split, devices, 0, round_)
        loss, count = torch.zeros(()), 0
        for user in range(10):
            items = torch.from_numpy(split.train[split.ptr[user] : split.ptr[user + 1]]).long()
            for stop in range(len(items), 1, -6):  # windows, from the end
                part = items[max(0, stop - 7) : stop]
                output = encode(n_windows, p, part[None, :-1], torch.tensor([len(part) - 1]))[0]
                loss = loss + cross_entropy(output @ p["items"].T + p["item_bias"], part[1:], reduction="sum")
                count += len(part) - 1
        adam.zero_grad()
        (loss / count).backward()
        adam.step()
        rate.step()
    for name, value in p.items():
        torch.testing.assert_close(model[name], value.detach(), rtol=1e-4, atol=2e-5)


def test_scores_read_the_history_of_the_split_that_they_are_given(random_split):
    split, method = random_split(users=10, items=30), SASRec(**SMALL)
    model = method.learn(method.start(split, 0), split, Devices.of(split, False), 0, 1)
    users = torch.arange(10)
    known = method.scores(model, split, users)
    held = split.valid
    parts = [
        np.concatenate([split.train[a:b], held.items[c:d]])
        for a, b, c, d in zip(split.ptr, split.ptr[1:], held.ptr, held.ptr[1:], strict=False)
    ]
    ptr = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    nothing = HeldOut(np.zeros(11, np.int64), held.items[:0])
    fresh = replace(split, ptr=ptr, train=np.concatenate(parts), valid=nothing, ratings=None)
    again = method.scores(model, fresh, users)
    assert ((known - again).abs().amax(1) > 1e-5).all()
    torch.testing.assert_close(method.scores(model, split, users), known)


def test_a_user_without_training_items_gets_what_is_popular(random_split):
    split, method = random_split(users=4, items=30), SASRec(**SMALL)
    model = method.learn(method.start(split, 0), split, Devices.of(split, False), 0, 1)
    cold = replace(split, ptr=split.ptr - split.ptr[1], train=split.train[split.ptr[1] :])
    cold.ptr[0] = 0
    scores = method.scores(model, cold, torch.arange(2))
    torch.testing.assert_close(scores[0], model["item_bias"])
    torch.testing.assert_close(method.scores(model, cold, torch.tensor([0])), scores[:1])


def test_the_rate_rises_and_falls():
    method = SASRec(lr=1.0, warm_up=4)
    assert [method.rate(k, 100) for k in (0, 1, 3, 50, 98, 1000)] == pytest.approx([0.25, 0.495, 0.97, 0.5, 0.05, 0.05])


@pytest.mark.parametrize("class_", [SASRec, FedSASRec])
def test_the_schedule_is_that_of_the_run(class_):
    method = class_(dim=8)
    assert (method.schedule, method.falls) == (0, class_.default_rounds)
    assert method.for_rounds(7).falls == 7
    assert method.for_rounds(7).for_rounds(9).falls == 7
    assert class_(schedule=5).for_rounds(7).falls == 5


def test_a_run_steps_by_its_own_schedule(random_split):
    """A run of three rounds is one of a schedule of three, and it can be asked with either method."""
    data, method = random_split().data, SASRec(**SMALL | {"schedule": 0})
    run = fr.train(method, data, rounds=3)
    given = fr.train(SASRec(**SMALL | {"schedule": 3}), data, rounds=3)
    other = fr.train(SASRec(**SMALL | {"schedule": 30}), data, rounds=3)
    items = [each.point.state.shared["items"] for each in (run, given, other)]
    assert torch.equal(items[0], items[1])
    assert not torch.equal(items[0], items[2])


@pytest.mark.parametrize(
    "settings", [{"dim": 7}, {"heads": 0}, {"dropout": 1.0}, {"window": 0}, {"lr": -1.0}, {"schedule": -1}]
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        SASRec(**settings)
