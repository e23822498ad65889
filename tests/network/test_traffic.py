"""The search finds what is planted, and nothing in what devices really send."""

import base64
import gzip
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from tests.network.traffic import Secrets, always, recorded, search

from federec.aggregators.mean import Mean
from federec.cohort.draw import Devices, draw
from federec.cohort.layers import USERS
from federec.errors import UserError
from federec.federation.device import cohorts, keep_private, update_of
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.methods.registry import METHODS
from federec.network import device, settings
from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.parameters import Payload
from federec.runs.config import RunConfig

rng = np.random.default_rng(7)
HISTORY = rng.permutation(200)[:30].tolist()
VECTOR = rng.normal(size=16).astype(np.float32)
SECRETS = Secrets(
    items=200,
    labels=["maria@example.org", "42"],
    slots=[17, 4, 99, 230],
    histories=[HISTORY, [5, 2, 9, 150]],
    times=[874965758.0],
    vectors=[VECTOR],
)
IDS = torch.from_numpy(np.unique(np.concatenate([HISTORY, rng.permutation(200)[:90]])))


def harmless():
    """A message as devices send it: rows of positives and negatives, sums, facts."""
    update = {"ids": IDS, "rows:items": torch.randn(len(IDS), 16), "layers:net": torch.randn(16, 4)}
    facts = {"run": "films", "round": 42, "devices": 5, "sums": {"loss": [12.5, 5], "valid hr@10": [3.0, 5]}}
    return {"update": save(update), "wanted": save({"wanted": IDS.int()}), "facts": json.dumps(facts).encode()}


def tensors(**planted):
    return {"update": save({name.replace("_", ":"): value.contiguous() for name, value in planted.items()})}


def facts(**planted):
    return {"facts": json.dumps({"round": 1} | planted).encode()}


hot = torch.zeros(200)
hot[HISTORY] = 1
marked = torch.isin(IDS, torch.tensor(HISTORY))
vector = torch.from_numpy(VECTOR)
PLANTED = {
    "a user's vector": (tensors(layers_net=vector), "private parameters"),
    "a part of it among others": (
        tensors(rows_items=torch.cat([torch.randn(7), vector[3:9], torch.randn(7)])),
        "private",
    ),
    "as double": (tensors(x=vector.double()), "private parameters (<f8)"),
    "as half": (tensors(x=vector.half()), "private parameters (<f2)"),
    "as bfloat16": (tensors(x=vector.bfloat16()), "private parameters (bfloat16)"),
    "at an odd byte": ({"raw": b"abc" + VECTOR.tobytes() + b"d"}, "private parameters"),
    "the other way round": ({"raw": VECTOR.astype(">f4").tobytes()}, "private parameters (>f4)"),
    "in base64": (facts(note=base64.b64encode(VECTOR.tobytes()).decode()), "base64: private parameters"),
    "in hexadecimal": (facts(note=VECTOR.tobytes().hex()), "hex: private parameters"),
    "in zlib": ({"raw": zlib.compress(save({"x": vector}))}, "zlib: private parameters"),
    "in gzip in base64": (facts(note=base64.b64encode(gzip.compress(VECTOR.tobytes())).decode()), "private parameters"),
    "interactions": (tensors(ids=torch.tensor(HISTORY)), "an order of interactions (<i8)"),
    "some of them": (tensors(ids=torch.tensor(HISTORY[10:20], dtype=torch.int32)), "an order of interactions (<i4)"),
    "as floats": (tensors(x=torch.tensor(HISTORY).float()), "an order of interactions (<f4)"),
    "sorted": (tensors(ids=torch.tensor(sorted(HISTORY))), "interactions of user 0 and nothing else"),
    "few": (tensors(ids=torch.tensor([2, 5, 9])), "interactions of user 1 and nothing else"),
    "in JSON": (facts(x={"deep": [sorted(HISTORY)]}), "interactions of user 0 and nothing else"),
    "as keys in JSON": (facts(x={str(code): 1 for code in HISTORY}), "interactions of user 0 and nothing else"),
    "in zlib, sorted": ({"raw": zlib.compress(save({"x": torch.tensor(sorted(HISTORY))}))}, "user 0 and nothing else"),
    "as a mask": (tensors(x=hot), "is not zero: interactions of user 0"),
    "as bits": (tensors(x=hot.bool()), "is not zero: interactions of user 0"),
    "as rows that are not zero": (tensors(rows_items=hot[:, None] * torch.randn(200, 4)), "interactions of user 0"),
    "as labels beside codes": (tensors(ids=IDS, labels=marked.float()), "is not zero at update ids: interactions"),
    "a label": (facts(who="maria@example.org"), "the label 'maria@example.org'"),
    "a short label": (facts(who="42"), "the label '42'"),
    "a label in bytes": ({"raw": b"\0maria@example.org\0"}, "the label 'maria@example.org'"),
    "a time": (facts(when=874965758), "the time 874965758"),
    "a time in bytes": (tensors(x=torch.tensor([1.0, 874965758.0], dtype=torch.float64)), "the time 874965758"),
    "numbers of users": (tensors(x=torch.tensor([4, 17, 99, 230])), "numbers of users"),
}


def test_a_harmless_message_is_harmless():
    assert search([harmless()] * 3, SECRETS) == []
    assert search([tensors(ids=torch.arange(200), rows_items=torch.randn(200, 4))], SECRETS) == []


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(what):
    planted, says = PLANTED[what]
    for messages in ([planted], [harmless(), {f"other {part}": blob for part, blob in harmless().items()} | planted]):
        found = search(messages, SECRETS)
        assert any(says in line for line in found), found


def test_what_was_recorded(tmp_path):
    for number, planted in enumerate([harmless(), tensors(x=vector)]):
        for part, blob in planted.items():
            (tmp_path / f"{number:06d}-{part}.safetensors").write_bytes(blob)
    messages = recorded(tmp_path)
    assert [sorted(message) for message in messages] == [
        ["facts.safetensors", "update.safetensors", "wanted.safetensors"],
        ["update.safetensors"],
    ]
    assert search(messages, SECRETS) == ["message 1, update.safetensors: private parameters (<f4)"]
    assert always(messages[:1] * 2, "wanted.safetensors") == {*IDS.tolist()}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if issubclass(method, DeviceMethod)])
def test_updates_of_every_method_hold_nothing_private(name, small, random_split, tmp_path):
    """The sum of the messages of a device's users, as `Mean` adds them up, against all that the device keeps."""
    data = random_split(users=5, items=60, least=9).data
    method = small(name)
    store = DeviceFolder.share(tmp_path / "device", Key("file", b"k" * 32), data, range(5))
    start, devices, messages = State.start(method, 60, 5, 3), Devices.of(store.split(3), False), []
    for round_ in (1, 2):
        state, mean = store.begin("run", round_, start), Mean(60)
        for cohort in cohorts(method, state, devices, torch.arange(5), 3, round_):
            method.fit(cohort)
            mean.add(update_of(method, cohort, state))
            keep_private(cohort, state)
        store.commit("run", round_, state, Payload.nothing(), RunConfig.of(method, data))
        messages.append({"update": save({name: value.contiguous() for name, value in mean.total.items()})})
    secrets = Secrets(items=60).learn(store, start)
    assert len(secrets.histories) == 5
    assert bool(secrets.vectors) == bool(method.private())
    if name == "fedals":  # an item of one user alone: the sum of its users' vectors is that user's vector
        assert "message 0, update: private parameters (<f4)" in search(messages, secrets)
        return
    assert search(messages, secrets) == []
    taken = save({"x": torch.from_numpy(secrets.vectors[-1])}) if secrets.vectors else b""
    if secrets.vectors and len(np.unique(secrets.vectors[-1])) >= 4:
        assert search([{"update": taken}], secrets) != []


FEDERATED = [
    name
    for name, method in METHODS.items()
    if issubclass(method, DeviceMethod) and not any(USERS in param.shape for param in method().shared().values())
]


# One of each kind of message; of the others only updates are searched, above.
WHOLE = {"pfedrec", "fedncf", "fedrap", "fednext", "fedals", "fcf", "fedsasrec"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in WHOLE else pytest.mark.slow) for name in FEDERATED]
)
def test_a_server_receives_nothing_private(name, small, random_split, federation, monkeypatch):
    """All that reaches the server of a whole run, against all that all devices keep: phones, of one user each. Methods
    whose messages tell what a user has are refused without secure aggregation; they do tell."""
    data, method = random_split(users=5, items=60, least=9).data, small(name)
    labels = np.array([f"user-{user}@example.org" for user in range(5)], object)
    data = replace(data, user_ids=labels, times=data.times + 874965758)
    how = {"nodes": 5, "rounds": 2, "settings": method.model_dump(), "record": True}
    if method.sums:
        with pytest.raises(UserError, match=f"'{name}' needs secure aggregation"):
            federation(data, name, **how)
        for module in (settings, device):
            monkeypatch.setattr(module, "check_secure", lambda method, channel: None)
    federated = federation(data, name, **how)
    federated.serve()
    messages, secrets = recorded(federated.run / "received"), Secrets(items=60)
    for store in map(federated.folder, range(5)):
        secrets.learn(store, State.start(method, 60, 1, federated.config.seed))
    assert len(messages) >= 3 * 5
    assert (len(secrets.labels), len(secrets.histories), len(secrets.times)) == (5, 5, len(data))
    assert bool(secrets.vectors) == bool(method.private())
    found = search(messages, secrets)
    assert any("interactions of user 0 and nothing else" in line for line in found) if method.sums else found == []


def test_rows_asked_for_round_after_round_give_a_user_away(random_split):
    """Not private parameters, but nearly as good: a device that names the rows it needs names its positives each time
    and other items once in a while. So a channel without stages is for hubs of many users, or for trusted servers."""
    split = random_split(users=1, items=400, least=20, most=20)
    devices, user = Devices.of(split, False), torch.tensor([0])
    messages = []
    for round_ in range(1, 9):
        ids = draw(devices, user, 0, round_, 4).items.unique()
        messages.append({"wanted": save({"wanted": ids})})
    assert search(messages, Secrets(items=400, histories=[split.train.tolist()])) == []
    assert always(messages, "wanted") == {*split.train.tolist()}


@pytest.mark.parametrize("users", [1, 40])
def test_one_users_update_points_where_the_users_vector_does(small, random_split, users):
    """Every row of it is a multiple of that vector, or nearly so; among the rows of many users' sum few are."""
    split = random_split(users=users, items=30, least=9)
    method, devices = small("fedmf", epochs=1, batch=1000), Devices.of(split, False)
    state, mean = State.start(method, 30, users, 3), Mean(30)
    state.private["user"] = torch.randn(users, 4, generator=torch.Generator().manual_seed(0))  # as after some rounds
    for cohort in cohorts(method, state, devices, torch.arange(users), 3, 1):
        before = cohort.params["user"].clone()
        method.fit(cohort)
        mean.add(update_of(method, cohort, state))
    rows = mean.total["items"]
    rows = rows[rows.any(1)]
    straight = (torch.cosine_similarity(rows, before[:1]).abs() > 0.99).float().mean()
    assert straight > 0.9 if users == 1 else straight < 0.5
