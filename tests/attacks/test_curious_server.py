"""A server that keeps all that it sends and receives does not learn which items a one-user device trains on."""

import numpy as np
import pytest
from tests.attacks.hostile import Curious, nodes_of, prepared
from tests.network.federated import hurry

from federec.auditing.measures import against_mates
from federec.auditing.reading import ATTACKS as AUDITED
from federec.auditing.reading import Known, Seen, along
from federec.data.split import hold_out
from federec.network.messages import Order, Reply
from federec.network.server import serve
from federec.network.vector import length
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.stages.registry import parse

USERS, ITEMS, ROUNDS = 24, 200, 5
READ = ("rows asked for", "rows sent down", *AUDITED)
MASKED = ("masked direction", "masked sum", "masked sign", "masked size", "masked parity")
ATTACKS = (*READ, *MASKED, "adverts", "shares", "unmasked")


@pytest.fixture
def watched(random_split, tmp_path, monkeypatch):
    """All messages of five rounds with one-user devices, and which items each of them trains on."""

    def make(method, channel):
        hurry(monkeypatch)
        # Items are drawn uniformly, so that what the cohort likes as a whole says nothing about one of its users.
        data = random_split(users=USERS, items=ITEMS, least=40, most=50).data
        path = prepared(tmp_path / f"{method}-{channel}", data, method, USERS, ROUNDS, channel)
        transport = Curious(nodes_of(path))
        serve(transport, path)
        transport.close()
        config = RunFolder(path).config()
        assert len(RunFolder(path).lines(ROUNDS)) == ROUNDS
        return config, transport.kept, trained(hold_out(data, config.seed, np.arange(USERS)))

    return make


def trained(split):
    has = np.zeros((USERS, ITEMS), bool)
    has[np.repeat(np.arange(USERS), np.diff(split.ptr)), split.train] = True
    return has


def scores(config: RunConfig, kept):
    """What each attack says about each user and item; more means that the user is more likely to have it."""
    method = config.build()
    sends = method.sends()
    dim, count = sends["items"].sized(ITEMS)[0], length(sends, ITEMS)
    found = {name: np.zeros((USERS, ITEMS)) for name in ATTACKS}
    known = Known(ITEMS, method.negatives, np.ones(ITEMS, np.int64), 45)
    for node, kind, _, order, content in kept:
        order, reply = Order.parse(order), Reply.parse(content)
        found["rows asked for"][node][reply.wanted] += 1
        found["adverts"][node] += laid_out(reply.advert)
        if kind in ("share", "unmask"):
            found["shares" if kind == "share" else "unmasked"][node] += laid_out(reply.sealed)
        if kind != "train":
            continue
        found["rows sent down"][node][order.shared.ids] += 1
        if reply.update.rows:
            seen = Seen(reply.update.ids, reply.update.rows["items"].astype(np.float64))
            for name, attack in AUDITED.items():
                found[name][node] += attack(seen, known).score
        if reply.sealed:  # version, hash of the order, then words of 32 bits
            words = np.frombuffer(reply.sealed[33:], "<i4").astype(float)
            assert len(words) == count
            words = words[-ITEMS * dim :].reshape(ITEMS, dim)
            found["masked direction"][node] += signed(along(words))
            found["masked sum"][node] += words.sum(1)
            found["masked sign"][node] += np.sign(words).sum(1)
            found["masked size"][node] += np.linalg.norm(words, axis=1)
            found["masked parity"][node] += (words % 2).sum(1)
    return found


def signed(far):
    """Distances with the sign by which items drawn as negatives, which go further, are below zero."""
    return -far * np.sign((far**3).sum())


def laid_out(content):
    """Bytes in the order of items, several for each where there are enough."""
    values = np.frombuffer(content, np.uint8).astype(float)
    return np.bincount(np.arange(len(values)) % ITEMS, values, ITEMS)


def auc(score, has):
    """How often a user's item has a higher score than one that only others of the cohort have."""
    return against_mates(score, has).mean


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["pfedrec", pytest.param("fedmf", marks=pytest.mark.slow)])
def test_at_the_default_no_attack_tells_a_users_items_from_those_of_its_cohort(watched, method):
    config, kept, has = watched(method, None)
    assert [stage["stage"] for stage in config.channel] == ["secure-sum"]
    found = {name: auc(score, has) for name, score in scores(config, kept).items()}
    assert all(0.45 <= value <= 0.55 for value in found.values()), found
    trained = [Reply.parse(content) for _, kind, *_, content in kept if kind == "train"]
    assert len(trained) == USERS * ROUNDS
    assert not any(reply.sums or reply.update.rows or reply.update.layers or len(reply.wanted) for reply in trained)
    assert len({len(reply.sealed) for reply in trained}) == 1  # nor does the length of a message tell anything


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["pfedrec", pytest.param("fedmf", marks=pytest.mark.slow)])
def test_the_same_attacks_read_devices_that_send_in_the_clear(watched, method):
    config, kept, has = watched(method, ())
    found = {name: auc(score, has) for name, score in scores(config, kept).items()}
    assert found["rows"] > 0.9
    assert found["direction"] > 0.9


NOISY = ("clip:norm=1", "dense", "gaussian:scale=0.5", "secure-sum")


def test_a_sum_shows_what_its_whole_cohort_has_unless_noise_lies_on_it(attacker):
    """Rows that no device touched are zero in a sum: nobody of the cohort has these items. Noise on whole tables leaves
    no row zero."""
    for name, stages in (("default", ("secure-sum",)), ("noise", NOISY)):
        server = attacker("fedmf", items=ITEMS, folder=name, channel=parse(stages))
        total, nodes = server.sum(server.order(), range(6))
        assert len(nodes) == 6
        zero = set(np.flatnonzero(~total[-ITEMS * 4 :].reshape(ITEMS, 4).any(1)))
        has = {item for node in nodes for item in server.folder(node).split(server.config.seed).train}
        assert len(zero) == (109 if name == "default" else 0)
        assert not zero & has
