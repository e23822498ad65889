"""Secure aggregation: right sums, and nothing of a single device in all that the server receives."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from flwr.app import Error, Message
from flwr.common.secure_aggregation.quantization import quantize
from tests.network.compare import assert_same
from tests.network.traffic import Secrets, recorded, search

from federec.cohort.layers import USERS
from federec.errors import UserError
from federec.methods.base import DeviceMethod
from federec.methods.registry import METHODS
from federec.network.messages import Reply
from federec.runs.folder import RunFolder
from federec.runtimes.flower import secure
from federec.runtimes.flower.records import unpacked
from federec.runtimes.local import run as run_locally

SMALL = {"dim": 4, "batch": 8, "item_lr_factor": 0.2}


@pytest.fixture
def vectors(monkeypatch):
    """What each device put under its mask."""
    seen = []

    def flat(*arguments, old=secure.flat):
        seen.append(old(*arguments))
        return seen[-1]

    monkeypatch.setattr(secure, "flat", flat)
    return seen


NEED_SUMS = [
    name
    for name, method in METHODS.items()
    if issubclass(method, DeviceMethod)
    and method.sums
    and not any(USERS in param.shape for param in method().shared().values())
]


@pytest.mark.parametrize("method", ["pfedrec", "fedncf", *NEED_SUMS])
def test_the_sum_is_right(federation, random_split, tmp_path, method):
    data = random_split(users=14, items=40).data
    settings = {key: value for key, value in SMALL.items() if key in METHODS[method].model_fields}
    if method == "fedease":
        settings = {"l2": (0.01, 0.1, 1.0)}  # one is best: masked sums are rounded at random
    federated = federation(data, method, nodes=4, settings=settings, minimum=3, channel=("secure-sum",))
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")


def test_the_server_receives_nothing_of_a_single_device(federation, random_split, vectors):
    data = random_split(users=14, items=40).data
    how = {"nodes": 4, "settings": SMALL, "rounds": 2, "minimum": 3, "record": True}
    federated = federation(data, **how, channel=("secure-sum",))
    federated.serve()
    assert len(vectors) == 4 * 3  # two rounds and the evaluation of the better one
    messages = recorded(federated.run / "received")
    assert len(messages) == 4 + 4 * 3 * 4  # who they are, and four trips each
    secrets = Secrets(data.n_items, vectors=[vector[vector != 0].numpy() for vector in vectors])
    secrets.vectors += [np.float32(q) for v in vectors for q in quantize([v.numpy()], 64.0, 1 << 22)]
    assert search(messages, secrets) == []
    bare = {"update": vectors[0][vectors[0] != 0].numpy().tobytes()}
    assert search([*messages, bare], secrets) != []  # it would be found


def test_without_secure_aggregation_the_same_search_finds_updates(federation, random_split):
    data = random_split(users=14, items=40).data
    federated = federation(data, nodes=4, settings=SMALL, rounds=1, record=True)
    updates = []

    def twist(node, message, reply):
        if message.metadata.message_type == "train":
            updates.append(Reply.parse(unpacked(reply.content)).update.rows["items"].flatten().numpy())
        return reply

    federated.grid.twist = twist
    federated.serve()
    assert search(recorded(federated.run / "received"), Secrets(data.n_items, vectors=updates)) != []


def test_a_device_that_drops_out_is_left_out(federation, random_split):
    turns = []

    def twist(node, message, reply):
        if node == 0 and message.metadata.message_type == "train":
            turns.append(node)
            if len(turns) == 3:  # it has shared its keys, and sends no vector
                return Message(Error(0, "gone"), reply_to=message)
        return reply

    federated = federation(
        random_split(users=14).data, nodes=4, settings=SMALL, rounds=1, minimum=3, channel=("secure-sum",), twist=twist
    )
    result = federated.serve()
    assert result["rounds"] == 1
    assert [line["reason"] for line in federated.events("rejected")] == ["failed"]
    assert federated.events("again") == []


def test_the_server_does_not_hear_why_a_device_failed(federation, random_split):
    """Flower sends the text of an exception to the server."""
    texts = []
    federated = federation(
        random_split(users=14).data, nodes=4, settings=SMALL, rounds=1, minimum=3, channel=("secure-sum",), deadline=1
    )
    grid, push = federated.grid, federated.grid.push_messages

    def push_messages(messages):
        if messages[0].metadata.message_type == "train":  # after the folders were found in order
            (grid.folders[0][0] / "device.db").unlink(missing_ok=True)
        try:
            return push(messages)
        except Exception as error:
            texts.append(str(error))
            raise

    grid.push_messages = push_messages
    with pytest.raises(RuntimeError):
        federated.serve()
    assert texts == ["the device could not do it; its own log says why"]


def test_it_needs_company(federation, random_split):
    with pytest.raises(UserError, match="set minimum to 3 or more"):
        federation(random_split().data, minimum=2, channel=("secure-sum",))
