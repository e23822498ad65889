"""Attackers as devices of the simulator."""

import pytest
import torch

import federec as fr
from federec.attackers.base import added, forged, histories, row_norms
from federec.attackers.crew import Crew
from federec.attackers.promote import Promote
from federec.attackers.registry import ATTACKS, parse_attack
from federec.cohort.draw import Devices, draw
from federec.cohort.update import Update
from federec.errors import UserError
from federec.federation.channel import Link
from federec.federation.round import play
from federec.federation.state import State
from federec.reporting.report import html_report
from federec.reporting.tables import run_table
from federec.runs.config import RunConfig
from federec.runs.group import Group
from federec.runtimes.simulation import make_trainer
from federec.stages.registry import parse, stage

USERS, ITEMS = 20, 40


@pytest.fixture
def devices(random_split):
    return Devices.of(random_split(users=USERS, items=ITEMS), False)


class Watched:
    """Keeps what arrives at the server of a link, by user."""

    def __init__(self, monkeypatch):
        self.sent = {}
        from federec.federation import round as round_module

        real = round_module.receive

        def receive(method, state, aggregator, update, users):
            for place, user in enumerate(users.tolist()):
                mine = update.owner == place
                self.sent[user] = update.ids[mine], {name: rows[mine] for name, rows in update.rows.items()}
            real(method, state, aggregator, update, users)

        monkeypatch.setattr(round_module, "receive", receive)


def round_of(method, devices, attack, rounds=1, stages=(), memory=None):
    state = State.start(method, devices.n_items, len(devices), 0)
    link = Link.of(method, [stage(values) for values in parse(stages)], None, attack)
    users = torch.arange(len(devices))
    for number in range(1, rounds + 1):
        play(method, state, devices, users, 0, number, link=link, memory=memory)
    return state


def norms(sent):
    return torch.cat(list(sent[1].values()), 1).norm()


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("method", ["fedmf", "pfedrec", "fedncf"])
def test_attackers_send_something_else_of_an_honest_size(name, method, devices, small, monkeypatch):
    built, attack = small(method), ATTACKS[name](fraction=0.2, targets=2)
    honest = Watched(monkeypatch)
    round_of(built, devices, None, rounds=2)
    poisoned = Watched(monkeypatch)
    round_of(built, devices, attack, rounds=2)
    crew = Crew.of(attack, devices, 0)
    assert crew.member.sum() == 4
    for user in range(USERS):
        (ids, rows), (was, _) = poisoned.sent[user], honest.sent[user]
        if not crew.member[user]:
            assert torch.equal(ids, was)
            continue
        assert all(bool(value.isfinite().all()) for value in rows.values())
        if attack.forge.__func__ is Promote.forge:  # forged interactions make updates of their own size
            assert 0 < norms(poisoned.sent[user]) < 4 * norms(honest.sent[user])


def test_promotion_sends_only_the_targets(devices, small, monkeypatch):
    attack, watched = Promote(fraction=0.2), Watched(monkeypatch)
    round_of(small("fedmf"), devices, attack)
    crew = Crew.of(attack, devices, 0)
    for user in crew.member.nonzero().flatten().tolist():
        assert torch.equal(watched.sent[user][0], crew.targets)


@pytest.mark.parametrize("name", ["promote", "pipattack", "fedrecattack"])
def test_promotion_lifts_the_target_for_honest_users(name, devices, small):
    method, attack = small("fedmf"), ATTACKS[name](fraction=0.3)
    crew = Crew.of(attack, devices, 0)
    lead = {}
    for kind in (None, attack):
        state = round_of(method, devices, kind, rounds=5)
        scores = state.private["user"][~crew.member] @ state.shared["items"].T
        lead[kind is attack] = (scores[:, crew.targets] - scores.mean(1, keepdim=True)).mean() / scores.std()
    assert lead[True] > lead[False] + 0.05


@pytest.mark.parametrize("name", ATTACKS)
def test_without_attackers_a_run_is_the_same_to_the_bit(name, devices, small):
    method = small("fedmf")
    plain, other = (round_of(method, devices, attack, 2) for attack in (None, ATTACKS[name](fraction=0)))
    for key, value in plain.tensors().items():
        assert torch.equal(value, other.tensors()[key]), key


def test_attackers_do_not_depend_on_the_size_of_cohorts(devices, small):
    method = small("fedmf")
    for name in ATTACKS:
        whole, single = (round_of(method, devices, ATTACKS[name](fraction=0.2), 1, memory=m) for m in (None, 1))
        torch.testing.assert_close(whole.shared["items"], single.shared["items"], rtol=1e-4, atol=1e-5)


def test_attackers_leave_stages_out_unless_they_obey(devices, small, monkeypatch):
    crew = Crew.of(Promote(fraction=0.2), devices, 0)
    attacker = int(crew.member.nonzero()[0])
    for obeys in (False, True):
        watched = Watched(monkeypatch)
        round_of(small("fedmf"), devices, Promote(fraction=0.2, obeys=obeys), stages=["clip:norm=0.01"])
        assert (norms(watched.sent[attacker]) <= 0.0101) == obeys


def test_more_attackers_and_targets_are_the_same_ones_and_more(devices):
    few, many = (Crew.of(Promote(fraction=f, targets=t), devices, 3) for f, t in ((0.1, 1), (0.4, 3)))
    assert few.member.sum() == 2
    assert many.member.sum() == 8
    assert not (few.member & ~many.member).any()
    assert set(few.targets.tolist()) < set(many.targets.tolist()) <= set(few.cold.tolist())
    assert Crew.of(Promote(fraction=0.001), devices, 3).member.sum() == 1
    popular = torch.bincount(devices.distinct, minlength=ITEMS)
    others = [item for item in range(ITEMS) if item not in few.cold.tolist()]
    assert popular[few.cold].max() <= popular[others].min()


def test_forged_interactions_are_learned_from(devices):
    users = torch.tensor([7, 2])
    liked, disliked = torch.zeros(2, ITEMS, dtype=torch.bool), torch.zeros(2, ITEMS, dtype=torch.bool)
    liked[0, [3, 5]], liked[1, [1]] = True, True
    disliked[0, [30, 31]], disliked[1, [8]] = True, True
    made = forged(devices, users, liked, disliked)
    samples = draw(made, users, 0, 1, 4)
    assert torch.equal(histories(made, users), liked)
    for row in range(2):
        mine = samples.items[row, : samples.counts[row]]
        labels = samples.labels[row, : samples.counts[row]].bool()
        assert set(mine[labels].tolist()) == set(liked[row].nonzero().flatten().tolist())
        assert set(mine[~labels].tolist()) <= set(disliked[row].nonzero().flatten().tolist())


def test_updates_are_added_row_by_row():
    def update(ids, counts, rows):
        return Update(9, torch.tensor(ids), torch.tensor(counts), {"a": torch.tensor(rows)[:, None]}, {})

    total = added(update([1, 4, 4], [2, 1], [1.0, 2, 3]), update([4, 5], [1, 1], [10.0, 20]), 0.5)
    assert total.ids.tolist() == [1, 4, 4, 5]
    assert total.counts.tolist() == [2, 2]
    assert total.rows["a"].flatten().tolist() == [1.0, 7.0, 3.0, 10.0]
    torch.testing.assert_close(row_norms(total), torch.tensor([50.0, 109.0]).sqrt())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("promot", "unknown attack 'promot' - did you mean 'promote'"),
        ("promote:fraction=0.9", "setting fraction=0.9 of attack 'promote'"),
        ("promote:part=1", "attack 'promote' has no setting 'part'"),
    ],
)
def test_a_wrong_text_is_told_in_one_line(text, message):
    with pytest.raises(UserError, match=message):
        parse_attack(text)


@pytest.mark.parametrize("method", ["fcf", "fedease", "metamf", "local-only"])
def test_methods_whose_devices_do_not_send_item_rows_are_refused(method, random_split, small):
    with pytest.raises(UserError, match="attack 'promote' needs devices that send changes of shared item rows"):
        Link.of(small(method), attack=Promote())


def test_a_run_says_what_came_of_an_attack(random_split, tmp_path):
    data = random_split(users=USERS, items=ITEMS).data
    run = fr.train("fedmf", data, rounds=3, attack="promote:fraction=0.2", aggregator="item-clip", out=tmp_path / "a")
    told = run.result["attack"]
    assert (told["name"], told["attackers"]) == ("promote", 4)
    assert told["exposure"].keys() == {"er@5", "er@10"}
    assert 0 <= told["exposure"]["er@5"] <= told["exposure"]["er@10"] <= 1
    assert run.config.attack.startswith("promote:fraction=0.2,targets=1,strength=1.0")
    assert run.config.aggregator == "item-clip"
    assert "attackers" in run.result["engine"]["reason"] or "single updates" in run.result["engine"]["reason"]
    assert fr.Run.load(tmp_path / "a", data).result == run.result
    assert "attack" not in fr.train("fedmf", data, rounds=1).result


def test_an_attack_on_pooled_data_is_refused(random_split):
    with pytest.raises(UserError, match="leave out stages, aggregator and attack"):
        fr.train("popularity", random_split().data, attack="promote")


@pytest.mark.parametrize("how", [{"attack": "promote"}, {"aggregator": "median"}])
def test_several_processes_are_refused(random_split, how):
    class Two(Group):
        size = 2

    split = random_split()
    config = RunConfig.of(fr.FedMF(dim=4), split.data, rounds=1, **how)
    with pytest.raises(UserError, match="needs all devices in one process; run it without torchrun"):
        make_trainer(config, config.build(), split, "cpu", Two())


def test_a_resumed_run_ends_as_if_it_had_never_stopped(random_split, tmp_path):
    data = random_split(users=USERS, items=ITEMS).data
    how = {"rounds": 4, "attack": "fedrecattack:fraction=0.2,known=0.5", "aggregator": "trimmed-mean:fraction=0.2"}
    whole = fr.train("fedmf", data, **how)

    def stop(line, rounds):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.train("fedmf", data, **how, out=tmp_path / "a", on_round=stop)
    resumed = fr.resume(tmp_path / "a", data)
    assert resumed.test == whole.test
    assert resumed.result["attack"] == whole.result["attack"]
    assert torch.equal(resumed.point.state.shared["items"], whole.point.state.shared["items"])


def test_the_terminal_and_the_report_tell_of_an_attack(random_split, capsys):
    run = fr.train("fedmf", random_split(users=USERS, items=ITEMS).data, rounds=1, attack="promote:fraction=0.2")
    run_table(run.result)
    assert "4 attackers (promote): ER@10 " in capsys.readouterr().out
    assert "4 attackers (promote): ER@10 " in html_report(run.result, run.history)
