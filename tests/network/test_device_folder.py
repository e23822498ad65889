"""A device folder keeps what it is given, shows it to nobody, and never keeps half a round."""

import json
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.federation.round import play
from federec.federation.state import State
from federec.runs.config import RunConfig

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.parameters import Payload
from federec.network.policy import Policy
from federec.network.vault import Vault

KEY = Key("file", b"k" * 32)
CONFIG = RunConfig.checked(method="pfedrec", settings={"dim": 4})


@pytest.fixture
def store(tmp_path):
    catalogue = Catalogue(tuple(f"item-{code}" for code in range(9)))
    return DeviceFolder.create(tmp_path / "device", KEY, catalogue, ["ann", "bob"])


def test_a_share_of_a_data_set_trains_on_what_a_local_run_trains_on(tmp_path, random_split):
    whole = random_split(users=12, items=40)
    for data in (whole.data, whole.data.__class__(**(vars(whole.data) | {"times": None}))):
        codes = [3, 4, 5, 9]
        store = DeviceFolder.share(tmp_path / f"timed-{data.times is not None}", KEY, data, codes)
        part = Devices.of(store.split(seed=5), False)
        everyone = Devices.of(leave_one_out(data, 5), False)
        for local, code in enumerate(codes):
            own, same = (d.train[d.ptr[u] : d.ptr[u + 1]] for d, u in ((part, local), (everyone, code)))
            assert torch.equal(own, same)
            own, same = (d.gaps[d.closed_ptr[u] : d.closed_ptr[u + 1]] for d, u in ((part, local), (everyone, code)))
            assert torch.equal(own, same)


def test_a_folder_of_an_older_version_gets_an_identity_and_the_default_policy(store):
    store.add(0, "item-3")
    with store._vault.change():
        for name in ("identity", "policy"):
            store._vault.delete(name)
        store._vault.put("secret", b"s" * 32)
    store.close()
    opened = DeviceFolder.open(store.path, KEY)
    assert opened.policy == Policy() and opened.identity.public and not opened.identity.certificate
    assert opened.history(0).items.tolist() == [3]
    assert "secret" not in opened._vault.names("")
    public = opened.identity.public
    opened.close()
    assert DeviceFolder.open(store.path, KEY).identity.public == public


def test_what_was_added_is_there_when_opened_again(store):
    store.add(0, "item-3", time=5.0, rating=4.0)
    store.add(0, "item-1", time=6.0)
    store.add(1, "item-7")
    store.close()
    again = DeviceFolder.open(store.path, KEY)
    assert again.users == ["ann", "bob"]
    assert again.history(0).items.tolist() == [3, 1]
    assert again.history(0).times.tolist() == [5.0, 6.0]
    assert np.isnan(again.history(0).ratings).tolist() == [False, True]
    assert again.slots == store.slots
    assert again.catalogue == store.catalogue


def test_a_round_can_be_played_again_but_not_the_one_before(store):
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    seen = Payload(torch.arange(9), {"items": start.shared["items"]})
    values = {}
    for number in (1, 2, 5):
        state = store.begin("run", number, start)
        values[number] = state.private["score.0.bias"].clone()
        state.private["score.0.bias"] += number
        store.commit("run", number, state, seen, CONFIG)
    assert torch.equal(store.begin("run", 6, start).private["score.0.bias"], values[5] + 5)
    assert torch.equal(store.begin("run", 5, start).private["score.0.bias"], values[5])
    assert torch.equal(store.begin("run", 3, start).private["score.0.bias"], values[5])
    with pytest.raises(UserError, match="round 2 of run 'run' cannot be played again"):
        store.begin("run", 2, start)
    assert torch.equal(store.begin("other", 1, start).private["score.0.bias"], values[1])


def test_the_state_after_a_chosen_round_is_kept_as_long_as_asked_for(store):
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    for number in range(1, 6):
        state = store.begin("run", number, start)
        state.private["score.0.bias"].fill_(number)
        store.commit("run", number, state, Payload(torch.arange(9), {}), CONFIG, keep=2 if number < 5 else 0)
        if number == 4:
            assert (store.after("run", 2, start).private["score.0.bias"] == 2).all()
    assert (store.after("run", 5, start).private["score.0.bias"] == 5).all()
    assert (store.after("run", 4, start).private["score.0.bias"] == 4).all()
    for run, number in (("run", 2), ("run", 3), ("other", 4)):
        with pytest.raises(UserError, match=f"keeps nothing of round {number} of run '{run}'"):
            store.after(run, number, start)


def raw(folder):
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def secrets_of(store, state):
    """Bytes that must not be readable in the folder: labels, interactions, parameters."""
    yield from (label.encode() for label in (*store.users, *store.catalogue.labels))
    for user in range(len(store.users)):
        history = store.history(user)
        yield from (array.tobytes() for array in (history.items, history.times, history.ratings))
    yield from (value[user].numpy().tobytes() for value in state.private.values() for user in range(len(value)))
    for own in state.stores.values():
        yield from (row.numpy().tobytes() for user in range(len(store.users)) for row in own.own(user)[1])


@pytest.mark.parametrize("name", ["pfedrec", "fedrap"])
def test_nothing_private_can_be_read_in_the_folder(small, tmp_path, random_split, name):
    data = random_split(users=4, items=20, least=5).data
    labels = np.array([f"user-{u}@example.org" for u in range(4)], object)
    data = data.__class__(**(vars(data) | {"user_ids": labels, "item_ids": np.array([f"film-{i}" for i in range(20)])}))
    method = small(name)
    store = DeviceFolder.share(tmp_path / "device", KEY, data, range(4))
    state = store.begin("a-run", 1, State.start(method, 20, 4, seed=0))
    play(method, state, Devices.of(store.split(0), False), torch.arange(4), 0, 1)
    tables = {key: value for key, value in state.shared.items() if method.shared()[key].rows}
    store.commit("a-run", 1, state, Payload(torch.arange(20), tables), RunConfig.of(method, data))
    hidden = [
        *secrets_of(store, state),
        b"a-run",
        name.encode(),
        *(table[0].numpy().tobytes() for table in tables.values()),
    ]
    assert len(hidden) > 40
    assert min(map(len, hidden)) >= 4
    for close in (lambda: None, store.close):  # while its log lies beside it, and after
        close()
        found = raw(store.path)
        assert [secret for secret in hidden if secret in found] == []


def test_what_is_forgotten_is_gone(store):
    store.add(0, "item-3")
    store.add(0, "item-5")
    store.add(1, "item-3")
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    state = store.begin("run", 1, start)
    state.private["score.0.bias"].fill_(7.0)
    store.commit("run", 1, state, Payload.nothing(), CONFIG)
    with sqlite3.connect(store.path / "device.db") as db:
        rows = db.execute("SELECT value FROM sealed WHERE name LIKE 'state 0 %' OR name = 'history 0'").fetchall()
    pieces = [value[i : i + 24] for (value,) in rows for i in range(0, len(value) - 24, 24)]
    assert len(rows) == 2
    assert all(piece in raw(store.path) for piece in pieces)
    store.forget(0, "item-3")
    assert not any(piece in raw(store.path) for piece in pieces)
    again = DeviceFolder.open(store.path, KEY)
    assert again.history(0).items.tolist() == [5]
    assert again.history(1).items.tolist() == [3]
    bias = again.begin("run", 2, start).private["score.0.bias"]
    assert torch.equal(bias[0], start.private["score.0.bias"][0])
    assert (bias[1] == 7.0).all()
    again.forget(1)
    assert [len(again.history(user)) for user in (0, 1)] == [1, 0]
    with pytest.raises(UserError, match="'item-3' is not among the interactions of 'ann'; nothing was erased"):
        again.forget(0, "item-3")


def test_a_round_does_not_bring_back_what_was_forgotten_meanwhile(store):
    store.add(0, "item-3")
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    store.split(seed=0)
    other = DeviceFolder.open(store.path, KEY)
    other.forget(0, "item-3")
    state = store.begin("run", 1, start)
    state.private["score.0.bias"].fill_(7.0)
    store.commit("run", 1, state, Payload.nothing(), CONFIG)
    bias = other.begin("run", 2, start).private["score.0.bias"]
    assert torch.equal(bias[0], start.private["score.0.bias"][0])
    assert (bias[1] == 7.0).all()


def test_interactions_added_during_a_round_stay(store):
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    state = store.begin("run", 1, start)
    DeviceFolder.open(store.path, KEY).add(1, "item-8")
    store.commit("run", 1, state, Payload.nothing(), CONFIG)
    assert store.history(1).items.tolist() == [8]


def test_rows_seen_are_the_newest_of_a_run(store):
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    for run, number, ids, value in (("a", 1, [1, 3], 1.0), ("a", 2, [3, 7], 2.0), ("b", 1, [4], 3.0)):
        rows = {"items": torch.full((len(ids), 4), value)}
        store.commit(run, number, store.begin(run, number, start), Payload(torch.tensor(ids), rows), CONFIG)
        if number == 2:
            assert store.seen().ids.tolist() == [1, 3, 7]
            assert store.seen().shared(9)["items"][:, 0].tolist() == [0, 1, 0, 2, 0, 0, 0, 2, 0]
    assert store.seen().ids.tolist() == [4]


def test_a_catalogue_grows_and_never_renumbers(store):
    store.add(0, "item-3")
    store.grow(store.catalogue.grown(["item-9", "item-3"]))
    again = DeviceFolder.open(store.path, KEY)
    assert len(again.catalogue) == 10
    again.add(0, "item-9")
    assert again.history(0).items.tolist() == [3, 9]
    with pytest.raises(UserError, match="renumbers items of 10-"):
        again.grow(Catalogue(("item-1", "item-0")))
    with pytest.raises(UserError, match="renumbers"):
        again.grow(Catalogue(again.catalogue.labels[:9]))


def test_what_create_and_open_refuse(tmp_path, store):
    catalogue = store.catalogue
    for path, users, says in (
        (store.path, ["a"], "is a device folder already"),
        (tmp_path, ["a"], "exists and is not empty"),
        (tmp_path / "new", ["a", "a"], "a user is given twice"),
    ):
        with pytest.raises(UserError, match=says):
            DeviceFolder.create(path, KEY, catalogue, users)
    with pytest.raises(UserError, match=r"is not a device folder \(no device.db\); make one with: federec device init"):
        DeviceFolder.open(tmp_path / "new", KEY)
    assert [path.name for path in tmp_path.iterdir()] == ["device"]
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700


def test_who_is_meant(store):
    assert store.user("bob") == 1
    with pytest.raises(UserError, match="hosts 2 users; say which one is meant with --user"):
        store.user()
    with pytest.raises(UserError, match="hosts no user 'bop' - did you mean 'bob'"):
        store.user("bop")


def test_other_settings_under_the_same_run_are_refused(store):
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    store.commit("run", 1, store.begin("run", 1, start), Payload.nothing(), CONFIG)
    wide = State.start(CONFIG.build().model_copy(update={"dim": 5}), 9, 2, seed=0)
    with pytest.raises(UserError, match="settings have changed under the same name; start a new run"):
        store.begin("run", 2, wide)


class Model(RuleBasedStateMachine):
    """A device folder beside a plain account of what it should hold. Values are those of one number per user."""

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory()
        catalogue = Catalogue(tuple(map(str, range(9))))
        self.store = DeviceFolder.create(Path(self.folder.name) / "d", KEY, catalogue, ["a", "b"])
        self.start = State(shared={}, private={"x": torch.zeros(2)})
        self.run, self.round, self.kept, self.playing, self.histories = "", 0, {}, None, [[], []]

    @rule(run=st.sampled_from("AB"), step=st.integers(-3, 3))
    def begin(self, run, step):
        number = max(1, (self.round if run == self.run else 0) + step)
        self.store.split(0)
        before = [done for done in self.kept if done < number] if run == self.run else [0]
        if not before:
            with pytest.raises(UserError, match="cannot be played again"):
                self.store.begin(run, number, self.start)
            return
        state = self.store.begin(run, number, self.start)
        was = self.kept[max(before)] if run == self.run else [0.0, 0.0]
        assert state.private["x"].tolist() == was
        self.playing = run, number, max(before), list(was), set()

    @precondition(lambda self: self.playing)
    @rule(fails=st.integers(0, 6))
    def commit(self, fails):
        """Interrupted at the write of that number, if there are as many."""
        run, number, before, was, forgot = self.playing
        new = torch.tensor(was) + 1 + 10 * torch.arange(2)
        state, writes = State(shared={}, private={"x": new}), iter(range(1, 100))

        def put(name, value):
            if next(writes) == fails:
                raise KeyboardInterrupt
            Vault.put(self.store._vault, name, value)

        self.store._vault.put = put
        try:
            self.store.commit(run, number, state, Payload.nothing(), CONFIG)
        except KeyboardInterrupt:
            return
        finally:
            del self.store._vault.put
        old = self.kept if run == self.run else {0: [0.0, 0.0]}
        after = [0.0 if user in forgot else float(new[user]) for user in range(2)]
        self.kept = {before: old[before], number: after}
        self.run, self.round, self.playing = run, number, None

    @rule(user=st.integers(0, 1), item=st.integers(0, 8))
    def add(self, user, item):
        self.store.add(user, str(item))
        self.histories[user] = [i for i in self.histories[user] if i != item] + [item]

    @rule(user=st.integers(0, 1), item=st.integers(0, 8))
    def forget(self, user, item):
        if item not in self.histories[user]:
            with pytest.raises(UserError, match="nothing was erased"):
                self.store.forget(user, str(item))
            return
        self.store.forget(user, str(item))
        self.histories[user].remove(item)
        for values in self.kept.values():
            values[user] = 0.0
        if self.playing:
            self.playing[4].add(user)

    @rule()
    def restart(self):
        self.store.close()
        self.store = DeviceFolder.open(Path(self.folder.name) / "d", KEY)
        self.playing = None

    @invariant()
    def histories_are_as_told(self):
        assert [self.store.history(user).items.tolist() for user in range(2)] == self.histories
        head = self.store.head
        assert (head.run, head.round) == (self.run, self.round) if head else not self.run

    def teardown(self):
        self.store.close()
        self.folder.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=25, stateful_step_count=20)

KILLED = """
import json, os, shutil, sys
from pathlib import Path
import torch
from federec.federation.state import State
from federec.runs.config import RunConfig
from federec.network.keys import Key
from federec.network.parameters import Payload
from federec.network.device_folder import DeviceFolder

key, config, path = Key("file", b"k" * 32), RunConfig.checked(), Path(sys.argv[1])
found = []
for statement in range(1, 100):
    copy = path.with_name(f"copy-{statement}")
    shutil.copytree(path, copy)
    child = os.fork()
    if not child:
        store = DeviceFolder.open(copy, key)
        state = store.begin("run", 2, State({}, {"x": torch.zeros(2)}))
        state.private["x"] += 1
        left = iter(range(1, statement))
        store._vault._db.set_trace_callback(lambda sql: next(left, None) or os._exit(9))
        store.commit("run", 2, state, Payload.nothing(), config)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    store = DeviceFolder.open(copy, key)
    after = store.begin("run", 3, State({}, {"x": torch.zeros(2)})).private["x"].tolist()
    found.append([killed, store.head.round, after])
    if not killed:
        break
print(json.dumps(found))
"""


@pytest.mark.thorough
def test_a_process_killed_at_any_statement_of_a_commit_leaves_before_or_after(store):
    """Real processes, ended without warning; the round is then played again."""
    state = store.begin("run", 1, State({}, {"x": torch.zeros(2)}))
    state.private["x"] += 5
    store.commit("run", 1, state, Payload.nothing(), CONFIG)
    store.close()
    done = subprocess.run([sys.executable, "-c", KILLED, store.path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= 8
    assert [killed for killed, _, _ in found] == [9] * (len(found) - 1) + [0]
    assert all((number, values) in ((1, [5, 5]), (2, [6, 6])) for _, number, values in found)
    assert found[0][1:] == [1, [5, 5]]
    assert found[-1][1:] == [2, [6, 6]]
