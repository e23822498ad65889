"""One line: what a node sends is what a simulated device sends, and what the server makes of it is the same."""

from contextlib import closing
from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from tests.network.compare import assert_same

from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.federation.device import learn
from federec.federation.server import settle
from federec.federation.state import State
from federec.network import server, torch_engine
from federec.network.messages import Reply
from federec.network.policy import epsilon, rho
from federec.runs.folder import RunFolder
from federec.runtimes.in_process import Fault
from federec.runtimes.local import run as run_locally
from federec.stages.clip import NORM
from federec.stages.randomness import Simulated

CHANNELS = [
    (),
    ("clip:norm=0.05",),
    ("clip:norm=0.05", "laplace:scale=0.01"),
    ("clip:norm=0.05", "gaussian:scale=0.01"),
    ("dense", "gaussian:scale=0.01"),
    ("top-rows:count=4", "quantise:bits=8"),
    ("clip:norm=0.05", "gaussian:scale=0.01", "quantise:bits=16"),
]


class Same:
    """The same random numbers for every device."""

    def bits(self, owner, draw):
        return Simulated(torch.tensor([7])).bits(torch.zeros_like(owner), draw)


def watched(replies):
    """Keeps what nodes send when they train, as it arrives."""

    def keep(node, reply):
        replies[node] = Reply.parse(reply).update
        return reply

    return lambda node, kind, round_: Fault(change=partial(keep, node)) if kind == "train" else Fault()


def with_layers(channel):
    """Layers beside rows matter to what clips, adds noise and quantises, which the last channel does in turn."""
    return pytest.param("fedncf", channel, marks=() if channel in (CHANNELS[0], CHANNELS[-1]) else pytest.mark.slow)


@pytest.mark.parametrize(
    ("method", "channel"),
    [*(("pfedrec", channel) for channel in CHANNELS), *map(with_layers, CHANNELS)],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_with_the_same_random_numbers_a_node_and_a_simulated_device_send_the_same_bits(
    federation, random_split, small, method, channel, monkeypatch
):
    split, replies = random_split(users=5), {}
    monkeypatch.setattr(torch_engine, "Real", Same)
    settings = small(method).model_dump(mode="json")
    federated = federation(
        split.data, method, nodes=5, rounds=1, settings=settings, channel=channel, faults=watched(replies)
    )
    federated.serve()
    config, sent = federated.config, {}
    built = config.build()
    devices = Devices.of(split, False)

    def deliver(update, users):
        sent[int(users)] = update

    link = config.link(built)
    state = State.start(built, devices.n_items, 5, config.seed)
    learn(built, state, devices, torch.arange(5), config.seed, 1, link.channel, deliver, memory=1, random=Same())
    assert sent.keys() == replies.keys() == set(range(5))
    for node, update in sent.items():
        assert np.array_equal(replies[node].ids, update.ids)
        for name, rows in update.rows.items():
            assert np.array_equal(replies[node].rows[name], rows), (node, name)
        for name, layer in update.layers.items():
            assert np.array_equal(replies[node].layers[name], layer[0]), (node, name)


def test_noise_of_nodes_differs(federation, random_split):
    replies, federated = {}, None
    federated = federation(
        random_split(users=3).data, nodes=3, rounds=1, channel=("dense", "gaussian"), faults=watched(replies)
    )
    federated.serve()
    rows = [replies[node].rows["items"] for node in range(3)]
    assert all(len(each) == 40 and (each != 0).all() for each in rows)
    assert len({tuple(each[0].tolist()) for each in rows}) == 3


def test_a_hub_clips_each_of_its_users(federation, random_split):
    replies = {}
    federated = federation(
        random_split(users=12).data, nodes=2, rounds=1, channel=("clip:norm=0.01",), faults=watched(replies)
    )
    federated.serve()
    for update in replies.values():
        assert 0.01 < np.linalg.norm(update.rows["items"]) <= 6 * 0.01 * 1.0001


def test_another_aggregator_gives_what_it_gives_in_a_local_run(federation, random_split, small, tmp_path):
    data, settings = random_split(users=4).data, small("fedmf").model_dump()
    federated = federation(data, "fedmf", nodes=4, rounds=2, settings=settings, aggregator="touched-mean")
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")
    plain = federated.config.model_copy(update={"aggregator": "mean"})
    run_locally(plain, data, RunFolder(tmp_path / "plain"))
    with pytest.raises(AssertionError):
        assert_same(federated.run, tmp_path / "plain")


def test_hubs_are_refused_where_single_updates_are_needed(federation, random_split):
    data = random_split(users=6).data
    federated = federation(data, "fedmf", nodes=2, rounds=1, aggregator="touched-mean", patience=0.2)
    with pytest.raises(UserError, match="round 1"):
        federated.serve()
    assert any("speaks for" in line["detail"] for line in federated.events("rejected"))


def test_quantised_updates_take_a_quarter_of_the_bytes(federation, random_split, tmp_path):
    sizes = {}
    for number, channel in enumerate([("dense",), ("dense", "quantise:bits=8")]):
        replies = {}
        federated = federation(
            random_split(users=3, items=3000, most=20).data, nodes=3, rounds=1, channel=channel,
            faults=watched(replies), at=tmp_path / str(number),
        )  # fmt: skip
        sizes[channel[-1]] = federated.serve()["communication"]["up_bytes_per_node_round"]
    assert sizes["quantise:bits=8"] < 0.3 * sizes["dense"]


PRIVATE = [
    ("clip:norm=0.05", "distributed-noise:multiplier=0.5,devices=2", "secure-sum"),
    ("clip:norm=0.05,quantile=0.5", "distributed-noise:multiplier=0.5,devices=2", "secure-sum"),
    ("clip:norm=0.05,quantile=0.5", "central-noise:multiplier=0.5", "secure-sum"),
    ("clip:norm=0.05,quantile=0.5", "central-noise:multiplier=0.5"),
]


@pytest.mark.parametrize("channel", PRIVATE, ids=" ".join)
@pytest.mark.parametrize("nodes", [5, 2])
def test_under_noise_on_sums_a_federation_is_the_simulation_with_the_same_secrets(
    federation, random_split, small, channel, nodes, monkeypatch
):
    """Devices and server draw as simulated ones with one key; what the server makes of two rounds is the same. A hub
    treats each of its users like a device."""
    monkeypatch.setattr(torch_engine, "Real", Same)
    monkeypatch.setattr(server, "Real", Same)
    split, method = random_split(users=5), small("fedmf")
    federated = federation(
        split.data, "fedmf", nodes=nodes, rounds=2, settings=method.model_dump(mode="json"), channel=channel
    )
    federated.serve()
    config, built = federated.config, federated.config.build()
    devices, link = Devices.of(split, False), federated.config.link(built)
    state = State.start(built, devices.n_items, 5, config.seed)
    for round_ in (1, 2):
        aggregator = link.aggregator(devices.n_items)
        now = link.channel.now(state.server)
        given = built, state, devices, torch.arange(5), config.seed, round_
        learned = learn(*given, now, lambda update, users, to=aggregator: to.add(update), memory=1, random=Same())
        settle(built, state, aggregator, link, learned, Same())
    found = RunFolder(federated.run).checkpoint().state
    tolerance = 1e-5 if "distributed" in channel[1] else 1e-3  # a secure sum rounds a hub's sum, not its users' values
    torch.testing.assert_close(found.shared["items"], state.shared["items"], atol=tolerance, rtol=0)
    assert not torch.allclose(
        state.shared["items"], State.start(built, devices.n_items, 5, config.seed).shared["items"]
    )
    if "quantile" in channel[0]:
        assert float(found.server[NORM]) == pytest.approx(float(state.server[NORM]), rel=1e-2) != 0.05


def test_a_federation_ends_when_its_budget_is_used_up(federation, random_split, tmp_path):
    pytest.importorskip("dp_accounting", reason="pip install federec[privacy]")
    federated = federation(random_split(users=4).data, "fedmf", nodes=4, rounds=9, channel=PRIVATE[0], epsilon=30.0)
    result = federated.serve()
    assert 0 < result["rounds"] < 9 and result["privacy"]["epsilon"] <= 30
    assert result["privacy"]["charged_rounds"] == result["rounds"] and result["privacy"]["sampling"] == 1.0


def test_a_device_stops_when_its_own_budget_is_used_up(federation, random_split):
    """The server goes on asking; each device counts by itself, on two thirds of its smallest cohort."""
    federated = federation(random_split(users=4).data, "fedmf", nodes=4, rounds=9, channel=PRIVATE[0], deadline=1.0)
    sends = federated.config.link(federated.config.build()).channel.sends(federated.config.build().sends(), 40)
    for node in range(4):
        with closing(federated.folder(node)) as folder:
            cost = rho(federated.config.link(federated.config.build()).channel, sends, folder.policy.cohort)
            folder.pin(folder.policy.model_copy(update={"budget": 1.01 * epsilon(2 * cost)}))
    with pytest.raises(UserError):
        federated.serve()
    for node in range(4):
        with closing(federated.folder(node)) as folder:
            assert folder.ledger.spent.rounds == 2 and folder.ledger.spent.rho == pytest.approx(2 * cost)


@pytest.mark.parametrize("aggregator", ["median", "item-clip", "krum", "geometric-median", "foolsgold"])
def test_robust_aggregators_give_what_they_give_in_a_local_run(federation, random_split, small, tmp_path, aggregator):
    data, settings = random_split(users=4).data, small("fedmf").model_dump()
    federated = federation(data, "fedmf", nodes=4, rounds=2, settings=settings, aggregator=aggregator)
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")


def test_an_attack_of_simulated_devices_is_refused(federation, random_split):
    with pytest.raises(UserError, match="attack 'promote' is one of simulated devices"):
        federation(random_split(users=4).data, "fedmf", nodes=4, attack="promote")
