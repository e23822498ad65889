import hashlib
import math
import random
import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, hypergeom

from federec.errors import UserError
from federec.network import secure_sum
from federec.network.certificates import Authority, Identity
from federec.network.secure_sum import Collector, Party, bits, rule

RUN, CONTEXT, SESSION = "run 1, round 7", b"what was ordered", bytes(range(16))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority.create(tmp_path_factory.mktemp("root") / "ca")


@pytest.fixture(scope="module")
def admit(authority):
    """The identity of a node by number; another family of numbers gives other nodes."""

    @cache
    def make(number, days=365):
        new = Identity.new()
        return new.admitted(authority.admit(new.request(), days=days), authority.pem)

    return make


class Session:
    """Plays all legs. `lost` names the nodes whose replies do not arrive, from a leg on."""

    def __init__(self, authority, admit, nodes, values, width=32, smallest=2, context=CONTEXT):
        self.root, self.values, self.smallest = authority.pem, values, smallest
        self.parties = {node: Party.begin(admit(node), RUN) for node in range(nodes)}
        adverts = {node: party.advert for node, party in self.parties.items()}
        self.collector = Collector(SESSION, adverts, width, values.shape[1], RUN, authority.pem)
        self.context = dict.fromkeys(range(nodes), context)
        self.seen = {}

    def share(self, lost=()):
        orders = self.collector.rosters()
        return self._leg("share", orders, lost, lambda party, order, _: party.share(order, self.root, self.smallest))

    def mask(self, orders, lost=()):
        take = lambda party, order, node: party.mask(self.values[node], order, self.context[node])  # noqa: E731
        return self._leg("mask", orders, lost, take)

    def agree(self, orders, lost=()):
        return self._leg("agree", orders, lost, lambda party, order, _: party.agree(order))

    def unmask(self, orders, lost=()):
        return self._leg("unmask", orders, lost, lambda party, order, _: party.unmask(order))

    def _leg(self, name, orders, lost, take):
        replies = {n: take(self.parties[n], order, n) for n, order in orders.items() if n not in lost}
        self.seen[name] = orders, replies
        return replies

    def play(self, lost_share=(), lost_mask=(), lost_agree=(), lost_unmask=()):
        collector = self.collector
        orders = collector.inputs(self.mask(collector.shares(self.share(lost_share)), lost_mask))
        if collector.sparse:
            orders = collector.agreed(self.agree(orders, lost_agree))
        return collector.unmasked(self.unmask(orders, lost_unmask))

    def until_mask(self):
        """The orders of the leg `mask`."""
        return self.collector.shares(self.share())

    def until_unmask(self):
        return self.collector.inputs(self.mask(self.until_mask()))


def numbers(nodes, length, most=1000, seed=0):
    return np.random.default_rng(seed).integers(-most, most + 1, (nodes, length))


@pytest.fixture
def play(authority, admit):
    def make(nodes, values=None, **more):
        return Session(authority, admit, nodes, numbers(nodes, 5) if values is None else values, **more)

    return make


def again(party):
    """A copy, for another try from the same state."""
    return replace(party)


# Sums


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_sum_is_the_plain_sum_whichever_third_drops_at_whichever_leg(authority, admit, data):
    nodes, width = data.draw(st.integers(2, 12)), data.draw(st.sampled_from([32, 64]))
    values = numbers(nodes, data.draw(st.integers(0, 40)), most=2 ** (width - 6), seed=data.draw(st.integers(0, 99)))
    lost = data.draw(st.lists(st.integers(0, nodes - 1), max_size=nodes // 3, unique=True))
    legs = [data.draw(st.integers(0, 3)) for _ in lost]
    at = [{node for node, leg in zip(lost, legs, strict=True) if leg == number} for number in range(3)]
    session = Session(authority, admit, nodes, values, width)
    total, summed = session.play(at[0], at[1], lost_unmask=at[2])
    assert set(summed) == set(range(nodes)) - at[0] - at[1]
    assert (total == values[summed].sum(0)).all()
    assert session.collector.refused == {}


@pytest.mark.thorough
def test_a_sparse_graph_gives_the_sum_while_a_third_drops(play):
    values = numbers(140, 3)
    lost = random.Random(4).sample(range(140), 42)
    session = play(140, values)
    assert session.collector.sparse
    total, summed = session.play(lost[:10], lost[10:20], lost[20:31], lost[31:])
    assert sorted(summed) == sorted(set(range(140)) - set(lost[:20]))
    assert (total == values[summed].sum(0)).all()


def test_where_more_than_a_third_drops_there_is_no_sum(play):
    assert play(9).play(lost_unmask={0, 1, 2, 3}) is None
    assert play(9).play(lost_mask={0, 1, 2, 3}) is None
    assert play(9).play(lost_share={0, 1, 2, 3}) is None


def test_a_hundred_thousand_users_do_not_wrap(play):
    steps = 2**22
    assert bits(100_000, steps) == 64
    assert bits(500, steps) == 32
    assert bits(512, steps) == 64
    with pytest.raises(UserError, match="fewer steps"):
        bits(2**40, 2**23)
    hubs = np.array([[100_000 * steps // 4, -100_000 * steps // 4]] * 4)
    total, _ = play(4, hubs, width=64).play()
    assert total.tolist() == [100_000 * steps, -100_000 * steps]
    edge = np.array([[2**30 - 1, -(2**30)]] * 2)
    assert play(2, edge).play()[0].tolist() == [2**31 - 2, -(2**31)]


def test_values_that_do_not_fit_are_refused(play):
    for values in (np.array([[2**31], [0]]), np.array([[-(2**31) - 1], [0]])):
        session = play(2, values)
        with pytest.raises(UserError, match="does not fit"):
            session.mask(session.until_mask())
    session = play(2)
    orders = session.until_mask()
    with pytest.raises(UserError, match="asks for 5 values"):
        session.parties[0].mask(np.zeros(4, np.int64), orders[0], CONTEXT)


@pytest.mark.thorough
def test_a_party_comes_back_from_the_vault_between_all_legs(play):
    session = play(130)
    leg = session._leg

    def reloading(*arguments):
        session.parties = {node: again(party) for node, party in session.parties.items()}
        return leg(*arguments)

    session._leg = reloading
    total, _ = session.play()
    assert (total == session.values.sum(0)).all()


# Parameters


def test_the_rule_holds_by_exact_tails():
    for nodes in [*range(129, 1200, 7), 3_000, 10_000, 30_000, 100_000, 2**20]:
        degree, threshold = rule(nodes)
        assert degree <= 20 * math.log2(nodes)
        dropped = nodes * hypergeom.cdf(threshold - 1, nodes - 1, math.ceil(2 * nodes / 3) - 1, degree)
        collude = nodes * hypergeom.sf(threshold - 1, nodes - 1, nodes // 10, degree)
        assert dropped <= 1e-3
        assert collude <= 2**-60
    for nodes in range(3, 129):
        degree, threshold = rule(nodes)
        assert degree == nodes - 1
        assert nodes - nodes // 3 >= threshold  # a third may drop
        assert 2 * threshold - nodes >= nodes / 3  # both secrets need so many that give both
    assert rule(2) == (1, 2)


def test_the_sample_of_signatures_is_large_enough():
    for nodes in (129, 1000, 100_000):
        for signers in (math.ceil(2 * nodes / 3), nodes):
            size = secure_sum._sample_size(nodes, signers)
            true = math.floor(0.55 * nodes)
            # exact: all of the sample, drawn without repetition, are among the true signers
            assert hypergeom.logsf(size - 1, signers, true, size) <= -80 * math.log(2)


def test_the_graph_is_regular_symmetric_and_another_one_for_each_session():
    nodes = 300
    rows = [secure_sum._neighbours(bytes(32), nodes, position) for position in range(nodes)]
    assert {len(set(row)) for row in rows} == {rule(nodes)[0]}
    assert all(position in rows[other] and other != position for position, row in enumerate(rows) for other in row)
    other = [secure_sum._neighbours(bytes([1] * 32), nodes, position) for position in range(nodes)]
    common = np.mean([len(set(one) & set(two)) for one, two in zip(rows, other, strict=True)])
    expected = rule(nodes)[0] ** 2 / (nodes - 1)
    assert abs(common - expected) < 0.05 * expected


def test_the_number_behind_the_shares_is_a_prime():
    prime, odd, twos = secure_sum._PRIME, secure_sum._PRIME - 1, 0
    assert prime > 2**256
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):  # Miller and Rabin
        value = pow(secrets.randbelow(prime - 3) + 2, odd, prime)
        assert value == 1 or any(pow(value, 2**k, prime) == prime - 1 for k in range(twos))


# Test vectors: another implementation must find the same


def test_vectors_of_shares():
    secret, slope = bytes(range(32)), 2**255 + 12345
    shares = {position: secure_sum._evaluate([int.from_bytes(secret), slope], position + 1) for position in range(3)}
    assert [share.hex() for share in shares.values()] == VECTORS["shares"]
    for pair in ((0, 1), (0, 2), (1, 2)):
        assert secure_sum._join({at: shares[at] for at in pair}, 2, lambda _: True) == secret


def test_vectors_of_masks():
    one, two = bytes(range(32)), bytes(range(32, 64))
    pair = secure_sum._exchange(one, [secure_sum._public(two)])[0]
    assert pair == secure_sum._exchange(two, [secure_sum._public(one)])[0]
    session = secure_sum._session(SESSION, 5, 32, 3, bytes(32))
    view = secure_sum._view(session, b"\xf8", hashlib.sha256(CONTEXT).digest())
    key = secure_sum._derive(pair, view, b"pair")
    found = {
        "pair": pair.hex(),
        "session": session.hex(),
        "view": view.hex(),
        "key": key.hex(),
        "self": secure_sum._derive(one, view, b"self").hex(),
        "words32": [f"{word:08x}" for word in secure_sum._stream(key, 3, 32)],
        "words64": [f"{word:016x}" for word in secure_sum._stream(key, 2, 64)],
        "tag": secure_sum._tag(session, 1, 2, "key", bytes(33)).hex(),
    }
    assert found == {name: VECTORS[name] for name in found}


def test_vectors_of_hash_trees():
    tree = secure_sum._Tree([bytes([number]) for number in range(5)])
    assert tree.root.hex() == VECTORS["tree"]
    for places in ([0], [4], [1, 2], [0, 1, 2, 3, 4], [0, 3, 4]):
        proof = [tree.proof(places)[at : at + 32] for at in range(0, len(tree.proof(places)), 32)]
        assert secure_sum._fold({at: bytes([at]) for at in places}, 5, iter(proof).__next__) == tree.root


# What a server that plays other devices can do


def roster_of(session, adverts, victim):
    """The roster of an own server that checks nothing."""
    collector = session.collector
    by_public = sorted(adverts, key=lambda node: session.parties[node].identity.public)
    collector.order, collector.places = by_public, {node: place for place, node in enumerate(by_public)}
    collector.tree = secure_sum._Tree([adverts[node] for node in by_public])
    collector.session = secure_sum._session(SESSION, len(by_public), 32, 5, collector.tree.root)
    return collector._roster(collector.places[victim])


@pytest.mark.parametrize("attack", ["none", "uncertified", "other root", "other run", "replayed keys", "swapped"])
def test_a_device_verifies_every_neighbour(play, admit, authority, tmp_path, attack):
    session = play(5)
    parties = session.parties
    if attack == "uncertified":
        parties[1] = Party.begin(Identity.new(), RUN)
    elif attack == "other root":
        root, own = Authority.create(tmp_path / "other"), Identity.new()
        parties[1] = Party.begin(own.admitted(root.admit(own.request()), root.pem), RUN)
    elif attack == "other run":
        parties[1] = Party.begin(admit(1), "run 1, round 6")
    elif attack == "replayed keys":  # a node of the server's own takes the keys of another
        keys = [secure_sum._public(parties[2].keys[:32]), secure_sum._public(parties[2].keys[32:])]
        signature = admit(1).sign(secure_sum._hash("advert", RUN.encode(), *keys))
        block = secure_sum._block
        parties[1].advert = secure_sum._message(block("H", admit(1).certificate), *keys, block("B", signature))
    elif attack == "swapped":  # the certificate of one node with the keys of another
        stranger = Identity(Identity.new().key, admit(1).certificate)
        parties[1] = Party.begin(stranger, RUN)
    roster = roster_of(session, {node: party.advert for node, party in parties.items()}, 0)
    if attack == "none":
        parties[0].share(roster, authority.pem, 5)
        return
    with pytest.raises(UserError):
        parties[0].share(roster, authority.pem, 5)


def test_a_node_cannot_stand_for_two(play, admit, authority):
    session = play(4)
    session.parties[1] = Party.begin(admit(2), RUN)  # with other one-time keys
    adverts = {node: party.advert for node, party in session.parties.items()}
    with pytest.raises(UserError, match="counts a node twice"):
        session.parties[0].share(roster_of(session, adverts, 0), authority.pem, 2)


def test_an_expired_neighbour_is_refused(play, authority, monkeypatch):
    session = play(3)
    roster = session.collector.rosters()[0]

    class Later(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(UTC) + timedelta(days=366)

    monkeypatch.setattr(secure_sum.datetime, "datetime", Later)
    with pytest.raises(UserError, match="expired"):
        session.parties[0].share(roster, authority.pem, 2)


def test_the_collector_refuses_adverts_that_do_not_verify(admit, authority):
    good = {node: Party.begin(admit(node), RUN).advert for node in range(3)}
    bad = {
        10: Party.begin(Identity.new(), RUN).advert,
        11: Party.begin(admit(11), "another run").advert,
        12: Party.begin(admit(1), RUN).advert,
        13: b"",
        14: good[0][:-1],
        15: b"\x02" + good[0][1:],
    }
    keys = [bytes(32), bytes(32)]  # points of low order
    signature = admit(16).sign(secure_sum._hash("advert", RUN.encode(), *keys))
    bad[16] = secure_sum._message(
        secure_sum._block("H", admit(16).certificate), *keys, secure_sum._block("B", signature)
    )
    collector = Collector(SESSION, good | bad, 32, 5, RUN, authority.pem)
    assert set(collector.refused) == set(bad)
    assert set(collector.rosters()) == set(good)


def test_a_group_that_is_too_small_is_refused_at_every_leg(play, authority):
    with pytest.raises(UserError, match="5 nodes are too few"):
        play(5, smallest=6).share()
    session = play(6, smallest=6)
    orders = session.collector.shares(session.share(lost={5}))
    with pytest.raises(UserError, match="5 nodes are too few"):
        session.mask(orders)
    session = play(6, smallest=6)
    orders = session.collector.inputs(session.mask(session.until_mask(), lost={5}))
    with pytest.raises(UserError, match="5 nodes are too few"):
        session.unmask(orders)
    with pytest.raises(UserError, match="too few to hide in"):  # a sparse graph hides in the neighbours
        play(130, smallest=100).share()


def test_a_server_cannot_claim_more_nodes_to_get_a_smaller_threshold(play, authority):
    session = play(5)
    roster = bytearray(session.collector.rosters()[0])
    roster[17:21] = (400).to_bytes(4)
    with pytest.raises(UserError):
        session.parties[0].share(bytes(roster), authority.pem, 2)


def test_shares_that_do_not_come_from_neighbours_do_not_count(play):
    """A server that makes up what neighbours shared, say with adverts of nodes that are not there."""
    session = play(6)
    order = session.until_mask()[0]
    forged = order[:2] + secrets.token_bytes(len(order) - 2)
    with pytest.raises(UserError, match="too few neighbours"):
        session.parties[0].mask(session.values[0], forged, CONTEXT)


@pytest.mark.thorough
def test_each_step_works_once(play, authority):
    session = play(130)
    collector, party = session.collector, session.parties[0]
    rosters = collector.rosters()
    orders = collector.shares(session.share())
    with pytest.raises(UserError, match="not asked to share"):
        party.share(rosters[0], authority.pem, 2)
    arrived = collector.inputs(session.mask(orders))
    with pytest.raises(UserError, match="not asked to mask"):
        party.mask(session.values[0], orders[0], CONTEXT)
    evidence = collector.agreed(session.agree(arrived))
    with pytest.raises(UserError, match="not asked to agree"):
        party.agree(arrived[0])
    session.unmask(evidence)
    with pytest.raises(UserError, match="not asked to unmask"):
        party.unmask(evidence[0])


def test_a_step_that_was_refused_ends_the_session(play):
    session = play(5)
    orders, party = session.until_unmask(), session.parties[0]
    with pytest.raises(UserError):
        party.unmask(orders[0] + b"x")
    with pytest.raises(UserError, match="not asked to unmask"):
        party.unmask(orders[0])


def without(order, place, nodes):
    """A bitmap in which a position is missing."""
    members = np.unpackbits(np.frombuffer(order[1:], np.uint8))
    members[place] = 0
    return order[:1] + np.packbits(members[:nodes]).tobytes()


def test_a_device_gives_one_kind_of_share_for_each_neighbour(play, monkeypatch):
    session = play(6)
    orders = session.until_unmask()
    party, place = session.parties[0], session.collector.places
    monkeypatch.setattr(Party, "_lock", lambda self, members, answer: answer)
    alive, dead = again(party).unmask(orders[0]), again(party).unmask(without(orders[0], place[3], 6))
    shares = [[reply[1 + 33 * at : 34 + 33 * at] for at in range(6)] for reply in (alive, dead)]
    held = party.held
    for node in range(1, 6):
        at = place[node] - (place[node] > place[0])
        both = held[66 * at : 66 * at + 33], held[66 * at + 33 : 66 * at + 66]
        assert shares[0][place[node]] == both[1]
        assert shares[1][place[node]] == (both[0] if node == 3 else both[1])
    assert len(alive) == 1 + 6 * 33


def test_sets_that_contradict_what_a_device_knows_are_refused(play):
    session = play(6)
    orders = session.collector.inputs(session.mask(session.collector.shares(session.share(lost={5}))))
    place = session.collector.places
    with pytest.raises(UserError, match="leaves this device out"):
        again(session.parties[0]).unmask(without(orders[0], place[0], 6))
    with pytest.raises(UserError, match="did not share"):
        again(session.parties[0]).unmask(secure_sum._message(b"\xfc"))
    with pytest.raises(UserError, match="do not exist"):
        again(session.parties[0]).unmask(secure_sum._message(b"\xff"))


@pytest.mark.thorough
def test_in_a_sparse_graph_a_device_needs_its_neighbours_in_the_sum(play):
    """The server lets a node's neighbours drop. Then it could take off all masks that the node has in common."""
    session = play(200)
    collector, parties = session.collector, session.parties
    replies, place = session.mask(session.until_mask()), collector.places[0]
    degree, threshold = rule(200)
    others = [collector.order[at] for at in collector._neighbours(place)]
    dropped = others[: degree - threshold + 2]
    arrived = collector.inputs({node: reply for node, reply in replies.items() if node not in dropped})
    with pytest.raises(UserError, match=f"{threshold - 1} nodes are too few"):
        again(parties[0]).agree(arrived[0])
    evidence = collector.agreed({node: parties[node].agree(order) for node, order in arrived.items() if node != 0})
    assert len(evidence) > 133  # the others may not know, but those left do not bring back the node's self-mask
    answers = {node: parties[node].unmask(order) for node, order in evidence.items()}
    assert collector.unmasked(answers) is None


def opened(replies, told, threshold):
    """The positions whose answers a server opens that has told each position another set."""
    taken = {}
    for place, reply in replies.items():
        others = sorted(told[place] - {place})
        entries = {other: reply[34 + 81 * at : 34 + 81 * (at + 1)] for at, other in enumerate(others)}
        taken[place] = reply[1:34], entries, reply[34 + 81 * len(others) :]
    found = set()
    for owner, (own, entries, sealed) in taken.items():
        parts = {owner: own}
        for holder, entry in entries.items():
            if holder in taken and owner in taken[holder][1]:
                parts[holder] = secure_sum._unseal(taken[holder][1][owner][49:], entry[:49])
        parts = {holder: part for holder, part in parts.items() if part}
        if secure_sum._join(parts, threshold, lambda key, sealed=sealed: secure_sum._opens(sealed, key)):
            found.add(owner)
    return found


def tell(session, told):
    """The answers of nodes, by position, that were told these sets."""
    answers = {}
    for node, place in session.collector.places.items():
        members = np.isin(np.arange(len(told)), list(told[place]))
        answers[place] = again(session.parties[node]).unmask(secure_sum._message(np.packbits(members).tobytes()))
    return answers


@pytest.mark.parametrize("nodes", [2, 3, 5, 6, 9])
def test_answers_for_different_sets_do_not_open(play, nodes):
    """The server tells some nodes that the first is there and the others that it is not, and tries all it gets."""
    session = play(nodes)
    session.until_unmask()
    everybody = set(range(nodes))
    for count in range(nodes):
        if count and nodes == 2:
            break
        told = {place: everybody - {0} if 0 < place <= count else everybody for place in everybody}
        found = opened(tell(session, told), told, rule(nodes)[1])
        assert len({frozenset(told[place]) for place in found}) <= 1
        if count <= nodes // 3:
            assert found == {place for place in everybody if told[place] == everybody}


def test_a_server_that_tells_everybody_another_set_opens_nothing(play):
    """Without locks each of three nodes would be called dropped by four of six, and a sum of three would open."""
    session = play(6)
    session.until_unmask()
    everybody, victims = set(range(6)), [3, 4, 5]
    told = {place: everybody - {3 + place, 3 + (place + 1) % 3} for place in range(3)}
    told |= {place: everybody - set(victims) | {place} for place in victims}
    assert all(sum(victim not in told[place] for place in everybody) == rule(6)[1] for victim in victims)
    assert opened(tell(session, told), told, rule(6)[1]) == set()


@pytest.mark.thorough
def test_in_a_sparse_graph_two_sets_are_not_both_agreed(play):
    """Half of the nodes are shown one set, half another; each gets as evidence whatever was signed for its set."""
    session = play(150)
    collector, place = session.collector, session.collector.places
    orders = session.until_unmask()
    other = {node: without(order, place[149], 150) for node, order in orders.items()}
    first = {node: session.parties[node].agree(orders[node]) for node in range(75)}
    second = {node: session.parties[node].agree(other[node]) for node in range(75, 149)}
    assert collector.agreed(first | second) == {}  # an honest server sees that it cannot go on
    assert len(collector.refused) == 74
    collector._enough = lambda members: True  # a dishonest one goes on
    with pytest.raises(UserError, match="too few nodes have agreed"):
        again(session.parties[0]).unmask(collector.agreed(first)[0])
    collector.adverts = [Anything(advert) for advert in collector.adverts]  # and takes all for signatures of its set
    forged = collector.agreed(first | second)[0]
    with pytest.raises(UserError, match="has not agreed"):
        again(session.parties[0]).unmask(forged)
    with pytest.raises(UserError, match="another set"):
        session.parties[80].unmask(forged)


class Anything:
    """A node whose signature the server does not look at."""

    def __init__(self, advert):
        self.member, self.mask = self, advert.mask

    def verify(self, message, signature):
        return True


# What the server sees


def test_nodes_that_were_ordered_different_things_have_no_readable_sum(play):
    session = play(6, numbers(6, 2000))
    session.context[0] = b"something else"
    orders = session.mask(session.until_mask())
    other = hashlib.sha256(CONTEXT).digest()
    replies = {node: reply[:1] + other + reply[33:] for node, reply in orders.items()}  # the server looks away
    total, summed = session.collector.unmasked(session.unmask(session.collector.inputs(replies)))
    assert len(summed) == 6
    assert np.abs(total).mean() > 2**28  # uniform over the ring: 2^30
    assert abs(np.corrcoef(total, session.values.sum(0))[0, 1]) < 0.1


def test_a_node_that_was_ordered_something_else_is_left_out(play):
    session = play(6)
    session.context[2] = b"something else"
    total, summed = session.play()
    assert sorted(summed) == [0, 1, 3, 4, 5]
    assert (total == session.values[summed].sum(0)).all()
    assert "something else" in session.collector.refused[2]


def test_nodes_that_were_told_different_neighbours_have_no_readable_sum(play):
    session = play(6, numbers(6, 2000))
    orders, place = session.until_mask(), session.collector.places
    members = session.collector.shared.copy()
    members[place[5]] = False
    honest, session.collector.shared = session.collector.shared, members
    orders[0] = session.collector._delivery(place[0])
    session.collector.shared = honest
    arrived = session.collector.inputs(session.mask(orders))
    replies = {node: session.parties[node].unmask(arrived[node]) for node in range(1, 6)}
    total, _ = session.collector.unmasked(replies)
    assert np.abs(total).mean() > 2**28


@pytest.fixture
def fixed(monkeypatch):
    """Secrets from a known generator; the certificates are still new each time."""
    generator = random.Random(5)
    monkeypatch.setattr(secrets, "token_bytes", generator.randbytes)
    monkeypatch.setattr(secrets, "randbelow", generator.randrange)


@pytest.mark.parametrize("width", [32, 64])
def test_masked_values_look_uniform(play, fixed, width):
    values = numbers(3, 20_000, most=100)
    values[1] = 0
    session = play(3, values, width=width)
    replies = session.mask(session.until_mask())
    for node, reply in replies.items():
        content = np.frombuffer(reply[33:], np.uint8)
        for byte in range(width // 8):
            assert chisquare(np.bincount(content[byte :: width // 8], minlength=256)).pvalue > 1e-7
        words = np.frombuffer(reply[33:], f"<i{width // 8}").astype(float)
        assert abs(np.corrcoef(words[1:], words[:-1])[0, 1]) < 0.05
        if node != 1:
            assert abs(np.corrcoef(words, values[node])[0, 1]) < 0.05
    pair = np.frombuffer(replies[0][33:], f"<u{width // 8}") + np.frombuffer(replies[1][33:], f"<u{width // 8}")
    assert chisquare(np.bincount(pair.view(np.uint8), minlength=256)).pvalue > 1e-7


def test_two_sessions_share_no_masks(play):
    values = np.zeros((3, 1000), np.int64)
    seen = []
    for _ in range(2):
        session = play(3, values)
        seen += [reply[33:] for reply in session.mask(session.until_mask()).values()]
        assert all(len(party.seed) == 32 for party in session.parties.values())
    words = np.concatenate([np.frombuffer(content, "<u4") for content in seen])
    assert len(np.unique(words)) > words.size - 5
    one = session.parties[0]
    keys = {
        secure_sum._derive(one.seed, secure_sum._view(one.session, b"", bytes([n] * 32)), b"self") for n in range(9)
    }
    assert len(keys) == 9


# Malicious nodes


def test_holders_that_lie_about_shares_do_not_stop_the_session(play):
    session = play(9)
    orders = session.collector.inputs(session.mask(session.until_mask(), lost={8}))
    session.parties[0].held = secrets.token_bytes(len(session.parties[0].held))
    replies = session.unmask(orders)
    replies[1] = replies[1][:1] + secrets.token_bytes(len(replies[1]) - 1)
    total, _ = session.collector.unmasked(replies)
    assert (total == session.values[:8].sum(0)).all()
    assert session.collector.refused == {0: "it gave a wrong share", 1: "its answer cannot be opened"}


def test_a_node_that_shares_other_secrets_is_named(play, monkeypatch):
    session = play(6)
    split = secure_sum._split
    liar = session.parties[2]
    replies = {}
    for node, roster in session.collector.rosters().items():
        if session.parties[node] is liar:
            monkeypatch.setattr(secure_sum, "_split", lambda _, *more: split(bytes(32), *more))
        replies[node] = session.parties[node].share(roster, session.root, 2)
        monkeypatch.setattr(secure_sum, "_split", split)
    collector = session.collector
    assert collector.unmasked(session.unmask(collector.inputs(session.mask(collector.shares(replies))))) is None
    assert collector.refused == {2: "it shared something else than its secrets"}


def test_a_node_that_shares_what_nobody_can_open_is_named(play):
    session = play(6)
    replies, collector = session.share(), session.collector
    replies[2] = replies[2][:49] + secrets.token_bytes(len(replies[2]) - 49)
    assert collector.unmasked(session.unmask(collector.inputs(session.mask(collector.shares(replies))))) is None
    assert collector.refused == {2: "it shared something else than its secrets"}


def test_one_share_off_the_curve_does_not_stop_the_session(play, monkeypatch):
    session = play(9)
    split = secure_sum._split

    def crooked(secret, threshold, positions):
        shares = split(secret, threshold, positions)
        return shares | {min(shares): bytes(33)}

    monkeypatch.setattr(secure_sum, "_split", crooked)
    random.seed(0)
    total, _ = session.play()
    assert (total == session.values.sum(0)).all()


def mutated(generator, content):
    """A message with a few bytes changed, cut, repeated or added."""
    changed = bytearray(content)
    kind = generator.randrange(5)
    for _ in range(generator.choice([1, 1, 3])):
        if kind <= 1 and changed:
            changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        elif kind == 2:
            del changed[generator.randrange(len(changed) + 1) :]
        elif kind == 3:
            changed += generator.randbytes(generator.randrange(1, 40))
        elif changed:
            at = generator.randrange(len(changed))
            changed[at : at + 4] = b"\xff\xff\xff\xff"
    return bytes(changed)


def fuzzed(party, order, step, seed):
    """Parties that accepted one of 2,000 mutations of an order. The others refuse with a UserError of one line."""
    generator, before, accepted = random.Random(seed), again(party), []
    for _ in range(2000):
        content, copy = mutated(generator, order), again(before)
        if content == order:
            continue
        try:
            step(copy, content)
            accepted.append(copy)
        except UserError as error:
            assert "\n" not in str(error)
    return accepted


def test_mutated_orders_are_refused_or_give_masks_that_do_not_cancel(play):
    session = play(5)
    party, collector = session.parties[0], session.collector
    rosters = collector.rosters()
    accepted = fuzzed(party, rosters[0], lambda copy, order: copy.share(order, session.root, 2), 1)
    orders = collector.shares(session.share())
    assert all(copy.session != party.session for copy in accepted)  # nobody else is in this session
    accepted = fuzzed(party, orders[0], lambda copy, order: copy.mask(session.values[0], order, CONTEXT), 2)
    arrived = collector.inputs(session.mask(orders))
    assert all(copy.view != party.view or b"\xff" * 66 in copy.held for copy in accepted)  # or one neighbour less
    assert len(accepted) < 1200
    accepted = fuzzed(party, arrived[0], lambda copy, order: copy.unmask(order), 3)
    assert len(accepted) < 600  # other sets of enough nodes


@pytest.mark.thorough
def test_mutated_agreements_are_refused(play):
    session = play(130)
    party, collector = session.parties[0], session.collector
    arrived = session.until_unmask()
    accepted = fuzzed(party, arrived[0], lambda copy, order: copy.agree(order), 4)
    replies = session.agree(arrived)
    assert all(copy.agreed != party.agreed for copy in accepted)
    evidence = collector.agreed(replies)
    assert fuzzed(party, evidence[0], lambda copy, order: copy.unmask(order), 5) == []
    generator = random.Random(6)
    changed = {node: mutated(generator, reply) for node, reply in replies.items()}
    collector.agreed(changed)
    assert {node for node in replies if changed[node] != replies[node]} == set(collector.refused)


@pytest.mark.parametrize("leg", ["share", "mask", "unmask"])
def test_the_server_survives_mutated_replies_and_the_sum_stays_right(play, leg):
    """One node's reply is mutated. Its own values may count for something else, those of the others may not change."""
    session = play(4, numbers(4, 2))
    adverts = {node: party.advert for node, party in session.parties.items()}
    session.play()
    seen, generator = {name: replies for name, (_, replies) in session.seen.items()}, random.Random(3)
    for _ in range(2000):
        collector = Collector(SESSION, adverts, 32, 2, RUN, session.root)
        replies = {name: dict(found) for name, found in seen.items()}
        replies[leg][1] = mutated(generator, replies[leg][1])
        collector.shares(replies["share"])
        collector.inputs(replies["mask"])
        found = collector.unmasked(replies["unmask"])
        if replies[leg][1] == seen[leg][1] or found is None:
            continue
        total, summed = found
        assert leg != "unmask" or (sorted(summed) == [0, 1, 2, 3] and (total == session.values.sum(0)).all())
        if leg == "share" and 1 not in collector.refused:
            assert (total == session.values.sum(0)).all()


def test_replies_of_strangers_and_of_nodes_that_were_not_asked_are_refused(play):
    session = play(4)
    shares = session.share(lost={3})
    session.collector.shares(shares | {77: shares[0]})
    assert session.collector.refused == {77: "it was not asked"}
    late = session.collector.inputs({3: b"\x01" + bytes(52)})
    assert late == {}
    assert session.collector.refused[3] == "it was not asked"


def test_five_devices_take_milliseconds(play):
    values = numbers(5, 54_000)
    play(5, values).play()
    start = time.process_time()
    play(5, values).play()
    assert time.process_time() - start < 0.5


@pytest.mark.slow
def test_a_thousand_devices_take_seconds(play):
    values = numbers(1000, 54_000)
    session = play(1000, values)
    start = time.process_time()
    total, _ = session.play()
    assert time.process_time() - start < 60
    assert (total == values.sum(0)).all()


VECTORS = {
    "shares": [
        "00800102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d4e58",
        "00000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d7d68",
        "00800102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1dada1",
    ],
    "pair": "9663aa1da97e848a914a436d04163dfbb89178f107f1b5b77ed3854203382854",
    "session": "1a8d2a2734d6103af7808d7ac27100cfc672210baa259ffed87c044b4aad4623",
    "view": "74b08e44136feb07a6b113319f0147acf0cdd3fa1b3c5d90ff8c6503f6e69dd2",
    "key": "b7b7b26361420ed0ed983d46a02ba9b0b80f09d9e5b4c82fcfb9fba06c878e85",
    "self": "452911065d82b801cc321d5159171c46ea594076f178544fc438addf72f7d9ec",
    "words32": ["35d02631", "5def0920", "0886f231"],
    "words64": ["5def092035d02631", "177495660886f231"],
    "tag": "b58b276eddcc19e8b51de3a91f99d506",
    "tree": "450da882c63d52081b6bffeb7cfd4f913e497a72ee423440c989424f40fe34c2",
}
