"""Tabs and Python devices in one secure sum: every message is one that the other side understands."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from tests.web.console import Refused
from tests.web.node import needs_node

from federec.errors import UserError
from federec.network.certificates import Identity
from federec.network.secure_sum import Collector, Party

pytestmark = needs_node
RUN, CONTEXT, SESSION = "run 1, round 7", b"what was ordered", bytes(range(16))


class Tab:
    """A Party in JavaScript, with the interface of the one in Python."""

    def __init__(self, console, identity, name, run=RUN):
        self.console, self.name = console, name
        self.advert = console(
            """const curve = {name: "ECDSA", namedCurve: "P-256"};
            const key = await crypto.subtle.importKey("pkcs8", secret, curve, false, ["sign"]);
            kept[name] = await secure_sum.Party.begin({key, certificate}, run);
            return kept[name].advert;""",
            secret=identity.secret(),
            certificate=identity.certificate,
            name=name,
            run=run,
        )

    def call(self, expression, **given):
        return self.console(f"return kept[name].{expression};", name=self.name, **given)

    def share(self, roster, root, smallest):
        body = """const root = await certificates.Root.of(certificates.fromPem(pem));
        return kept[name].share(roster, root, smallest);"""
        return self.console(body, name=self.name, roster=roster, pem=root.decode(), smallest=smallest)

    def mask(self, values, delivered, context):
        expression = "mask(Float64Array.from(values), delivered, context)"
        return self.call(expression, values=values, delivered=delivered, context=context)

    def agree(self, arrived):
        return self.call("agree(arrived)", arrived=arrived)

    def unmask(self, arrived):
        return self.call("unmask(arrived)", arrived=arrived)


class Session:
    """All legs of a sum; `tabs` are the nodes that are tabs."""

    def __init__(self, console, authority, admit, nodes, tabs, values, width=32, smallest=2):
        self.root, self.values, self.smallest = authority.pem, values, smallest
        self.parties = {
            node: Tab(console, admit(node), f"party {node}") if node in tabs else Party.begin(admit(node), RUN)
            for node in range(nodes)
        }
        adverts = {node: party.advert for node, party in self.parties.items()}
        self.collector = Collector(SESSION, adverts, width, values.shape[1], RUN, authority.pem)

    def play(self, not_shared=(), not_masked=(), not_unmasked=()):
        rosters = self.collector.rosters()
        shared = {
            n: self.parties[n].share(o, self.root, self.smallest) for n, o in rosters.items() if n not in not_shared
        }
        delivered = self.collector.shares(shared)
        inputs = {
            n: self.parties[n].mask(self.values[n], o, CONTEXT) for n, o in delivered.items() if n not in not_masked
        }
        arrived = self.collector.inputs(inputs)
        return self.collector.unmasked(
            {n: self.parties[n].unmask(o) for n, o in arrived.items() if n not in not_unmasked}
        )


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize(
    ("tabs", "lost"),
    [
        ((0, 3), {}),
        ((0, 3), {"not_shared": (3,)}),  # a tab is gone before it has shared its secrets
        ((0, 3), {"not_masked": (3,)}),  # after that: its mask key has to be brought back
        ((0, 3), {"not_masked": (1,)}),  # and tabs help to bring back a Python device's
        ((0, 3), {"not_shared": (5,), "not_masked": (2,), "not_unmasked": ()}),
        ((1, 2, 4), {"not_unmasked": (0, 4)}),
        (tuple(range(6)), {"not_masked": (2,)}),  # only tabs
    ],
)
def test_tabs_and_python_devices_have_one_sum(console, authority, admit, width, tabs, lost):
    values = np.random.default_rng(5).integers(-(2**23), 2**23, (6, 40))
    session = Session(console, authority, admit, 6, tabs, values, width)
    found = session.play(**lost)
    assert session.collector.refused == {}
    total, nodes = found
    away = {*lost.get("not_shared", ()), *lost.get("not_masked", ())}
    assert set(nodes) == set(range(6)) - away
    assert total.tolist() == values[sorted(nodes)].sum(0).tolist()


def test_what_a_tab_sends_says_nothing_of_its_values(console, authority, admit):
    """The same values, masked twice, have nothing in common; and the masked words are uniform."""
    values = np.zeros((4, 4000), np.int64)
    seen = []
    for _ in range(2):
        session = Session(console, authority, admit, 4, (0,), values)
        delivered = session.collector.shares(
            {n: session.parties[n].share(o, session.root, 2) for n, o in session.collector.rosters().items()}
        )
        seen.append(np.frombuffer(session.parties[0].mask(values[0], delivered[0], CONTEXT)[33:], "<u4"))
    assert not (seen[0] == seen[1]).any()
    for words in seen:
        assert abs(words.mean() / 2**32 - 0.5) < 0.03
        assert abs(np.bitwise_count(words).mean() - 16) < 0.3


# A server that is up to no good


def rosters(console, authority, admit, nodes=4, run=RUN, others=None):
    """A tab, and what an honest server would tell it."""
    tab = Tab(console, admit(0), "victim")
    parties = {node: Party.begin(admit(node), run) for node in range(1, nodes)}
    adverts = {0: tab.advert} | {node: party.advert for node, party in parties.items()} | (others or {})
    collector = Collector(SESSION, adverts, 32, 5, RUN, authority.pem)
    return tab, collector, parties


def test_a_tab_does_not_hide_among_few(console, authority, admit):
    tab, collector, _ = rosters(console, authority, admit)
    with pytest.raises(Refused, match="4 nodes are too few to hide in; this device asks for 10"):
        tab.share(collector.rosters()[0], authority.pem, 10)


def test_a_tab_does_not_hide_among_nodes_that_the_server_invents(console, authority, admit, tmp_path):
    from federec.network.certificates import Authority

    own = Authority.create(tmp_path / "server")
    tab = Tab(console, admit(0), "victim")
    invented = []
    for _ in range(3):
        new = Identity.new()
        invented.append(Party.begin(new.admitted(own.admit(new.request()), own.pem), RUN))
    adverts = [tab.advert, *(party.advert for party in invented)]
    collector = Collector(SESSION, {}, 32, 5, RUN, authority.pem)  # an honest one refuses them: this one does not
    from federec.network.secure_sum import _Tree

    collector.tree, collector.order, collector.identifier = _Tree(adverts), [0, 1, 2, 3], SESSION
    with pytest.raises(Refused, match="signed by another"):
        tab.share(collector._roster(0), authority.pem, 2)


def test_a_tab_does_not_hide_among_nodes_that_have_ended_or_are_there_twice(console, authority, admit):
    from federec.network.secure_sum import _Tree

    new = Identity.new()
    over = new.admitted(authority.admit(new.request(), days=0), authority.pem)
    parties = [Party.begin(each, RUN) for each in (admit(1), over, admit(2))]
    for wrong, why in ((parties, "has expired"), ([parties[0], parties[0], parties[2]], "counts a node twice")):
        tab = Tab(console, admit(0), "victim")
        everybody = sorted([(admit(0).public, tab.advert), *((p.identity.public, p.advert) for p in wrong)])
        collector = Collector(SESSION, {}, 32, 5, RUN, authority.pem)
        adverts = [advert for _, advert in everybody]
        collector.tree, collector.order, collector.identifier = _Tree(adverts), [0, 1, 2, 3], SESSION
        with pytest.raises(Refused, match=why):
            tab.share(collector._roster(adverts.index(tab.advert)), authority.pem, 2)


def test_keys_of_another_round_are_refused(console, authority, admit):
    from federec.network.secure_sum import _Tree

    tab, old = Tab(console, admit(0), "victim"), Party.begin(admit(1), "run 1, round 6")
    everybody = sorted([(admit(0).public, tab.advert), (admit(1).public, old.advert)])
    collector = Collector(SESSION, {}, 32, 5, RUN, authority.pem)
    adverts = [advert for _, advert in everybody]
    collector.tree, collector.order, collector.identifier = _Tree(adverts), [0, 1], SESSION
    with pytest.raises(Refused, match="not signed by the node for this run"):
        tab.share(collector._roster(adverts.index(tab.advert)), authority.pem, 2)


def test_a_tab_unmasks_one_set_once(console, authority, admit):
    """A server that asks for both shares of a node, for two sets, or leaves the tab out, gets nothing."""
    values = np.ones((6, 5), np.int64)

    def masked():
        session = Session(console, authority, admit, 6, (0,), values)
        delivered = session.collector.shares(
            {n: session.parties[n].share(o, session.root, 2) for n, o in session.collector.rosters().items()}
        )
        session.parties[0].mask(values[0], delivered[0], CONTEXT)
        return session, session.collector.places[0]

    def told(places):
        return bytes([1, sum(0x80 >> place for place in places)])

    session, own = masked()
    session.parties[0].unmask(told(range(6)))
    with pytest.raises(Refused, match="not asked to unmask now"):
        session.parties[0].unmask(told(range(6)))
    session, own = masked()
    with pytest.raises(Refused, match="leaves this device out"):
        session.parties[0].unmask(told(set(range(6)) - {own}))
    session, own = masked()
    with pytest.raises(Refused, match="too few to hide in"):
        session.parties[0].unmask(told([own, (own + 1) % 6]))
    session, own = masked()
    with pytest.raises(Refused, match="do not exist"):
        session.parties[0].unmask(bytes([1, 0xFF]))


def test_steps_out_of_order_and_malformed_messages_are_refused(console, authority, admit):
    tab, collector, _ = rosters(console, authority, admit)
    roster = collector.rosters()[0]
    with pytest.raises(Refused, match="not asked to mask now"):
        tab.mask([0] * 5, b"\1\xf0", CONTEXT)
    wrong = [roster[:-1], roster + b"\0", b"\2" + roster[1:], roster[:16] + bytes(30), b""]
    wrong += [roster[:17] + (2**20).to_bytes(4) + roster[21:], roster[:40] + bytes([roster[40] ^ 1]) + roster[41:]]
    for each in wrong:
        with pytest.raises(Refused):
            Tab(console, admit(0), "again").share(each, authority.pem, 2)
        with pytest.raises(UserError):
            replace(Party.begin(admit(0), RUN), advert=tab.advert).share(each, authority.pem, 2)


def test_values_that_do_not_fit_are_refused(console, authority, admit):
    for values, why in (([2**31] * 40, "does not fit"), ([0.5] * 40, "does not fit"), ([0] * 39, "asks for 40 values")):
        session = Session(console, authority, admit, 4, (0,), np.zeros((4, 40), np.int64))
        delivered = session.collector.shares(
            {n: session.parties[n].share(o, session.root, 2) for n, o in session.collector.rosters().items()}
        )
        with pytest.raises(Refused, match=why):
            session.parties[0].mask(values, delivered[0], CONTEXT)


def test_in_a_large_federation_a_tab_hides_among_its_neighbours_and_unmasks_what_most_have_signed(
    console, authority, admit
):
    """A server that shows the tab another set than it signed, or signatures that are not there, gets nothing; and then
    the sum is opened as it should be."""
    values = np.random.default_rng(5).integers(-(2**20), 2**20, (131, 7))
    session = Session(console, authority, admit, 131, (0, 50), values)
    collector, parties = session.collector, session.parties
    shared = {n: parties[n].share(o, session.root, 2) for n, o in collector.rosters().items() if n != 3}
    delivered = collector.shares(shared)
    inputs = {n: parties[n].mask(values[n], o, CONTEXT) for n, o in delivered.items() if n not in (7, 50)}
    signed = {n: parties[n].agree(o) for n, o in collector.inputs(inputs).items()}
    orders = collector.agreed(signed)
    evidence, size = orders[0], -(-131 // 8)
    begin = 1 + 2 * size + 32  # of the first advert, after two sets and a hash
    place = next(each for each in collector.places.values() if collector.arrived[each] and each != collector.places[0])
    smaller, forged = bytearray(evidence), bytearray(evidence)
    smaller[1 + place // 8] ^= 0x80 >> place % 8
    forged[begin + 2 + int.from_bytes(evidence[begin : begin + 2]) + 20] ^= 1  # in the first signature
    console("kept.before = kept['party 0'].copy();")
    for wrong, why in (
        (smaller, "agreed to another set"),
        (evidence[: 1 + size] + bytes(size) + evidence[1 + 2 * size :], "too few nodes have agreed"),
        (forged, "hashes do not fit"),
        (evidence[:-1], "cut short"),
        (evidence + b"x", "too long"),
    ):
        with pytest.raises(Refused, match=why):
            parties[0].unmask(bytes(wrong))
        console("kept['party 0'] = kept.before.copy();")
    total, nodes = collector.unmasked({n: parties[n].unmask(o) for n, o in orders.items()})
    assert collector.refused == {}
    assert set(nodes) == set(range(131)) - {3, 7, 50}
    assert total.tolist() == values[sorted(nodes)].sum(0).tolist()


def _agreed(tab, authority, adverts, identities):
    """Show a tab that all of these have signed a set; it looks at every one of them, since they are few."""
    from federec.network.secure_sum import _hash, _Tree

    view, members = bytes(32), bytes([0xFF << 8 - len(adverts) & 0xFF])
    agreed = _hash("agree", view, members)
    signatures = [identity.sign(agreed) for identity in identities]
    pairs = zip(adverts, signatures, strict=True)
    shown = b"".join(len(a).to_bytes(2) + a + bytes([len(s)]) + s for a, s in pairs)
    tab.console(
        """const root = await certificates.Root.of(certificates.fromPem(pem));
        Object.assign(kept[name], {root, nodes, view, agreed, tree, session: view});
        await kept[name].checkAgreed(Array(nodes).fill(true), new bytes.Reader(shown));""",
        name=tab.name,
        pem=authority.pem.decode(),
        nodes=len(adverts),
        view=view,
        agreed=agreed,
        tree=_Tree(adverts).root,
        shown=members + _Tree(signatures).root + shown,
    )


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("point", [0, 1])  # two points of low order: every secret gives 0 with them
def test_keys_with_which_everybody_gets_0_are_refused(console, authority, admit, point, place):
    """Also of nodes that are no neighbours, and are only seen in the sample of those who have agreed."""
    from federec.network.secure_sum import _hash

    tab = Tab(console, admit(0), "victim")
    identities = sorted((admit(node) for node in range(1, 4)), key=lambda each: each.public)
    adverts = [Party.begin(identity, RUN).advert for identity in identities]
    _agreed(tab, authority, adverts, identities)  # as it should be
    last, keys = identities[-1], [bytes([9 + at, *bytes(31)]) for at in range(2)]
    keys[place] = bytes([point, *bytes(31)])
    signature = last.sign(_hash("advert", RUN.encode(), *keys))
    certificate = len(last.certificate).to_bytes(2) + last.certificate
    adverts[-1] = b"\1" + certificate + b"".join(keys) + bytes([len(signature)]) + signature
    with pytest.raises(Refused, match="no X25519 keys"):
        _agreed(tab, authority, adverts, identities)


def test_a_sum_that_is_too_large_for_a_page_is_refused_in_plain_words(console, authority, admit):
    tab, collector, _ = rosters(console, authority, admit)
    roster = collector.rosters()[0]
    with pytest.raises(Refused, match="up to 65536 nodes"):
        tab.share(roster[:17] + (2**17).to_bytes(4) + roster[21:], authority.pem, 2)


def test_masks_bind_what_was_ordered(console, authority, admit):
    """A tab that was ordered something else than the others is left out of the sum, as a Python device is."""
    session = Session(console, authority, admit, 6, (0,), np.ones((6, 5), np.int64))
    delivered = session.collector.shares(
        {n: session.parties[n].share(o, session.root, 2) for n, o in session.collector.rosters().items()}
    )
    inputs = {
        n: session.parties[n].mask(session.values[n], o, b"other" if n == 0 else CONTEXT) for n, o in delivered.items()
    }
    assert inputs[0][1:33] == hashlib.sha256(b"other").digest()
    session.collector.inputs(inputs)
    assert session.collector.refused == {0: "it was ordered something else than most nodes"}
