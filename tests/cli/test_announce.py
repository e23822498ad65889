from dataclasses import replace

import numpy as np
import pytest

import federec as fr
from federec.cli import announce
from federec.methods.registry import METHODS
from federec.runs.config import RunConfig

FIRST = {"round": 1, "up_bytes": 2e3, "down_bytes": None, "seconds": {"train": 1.0, "evaluate": 0.5}}


@pytest.fixture
def data():
    rows = np.arange(12, dtype=np.int32)
    return fr.Interactions("films", rows // 4, rows % 6, np.arange(3), np.arange(6), np.arange(12.0), source_rows=12)


def test_a_small_run_says_nothing(data):
    assert list(announce.announcements(RunConfig.checked(method="fedrap"), data)) == []
    assert list(announce.costs(FIRST, 100)) == []


def test_how_the_data_was_read_is_said_first(data):
    said = list(announce.announcements(RunConfig.checked(method="fedrap"), replace(data, times=None, unused=("note",))))
    assert said == ["films: unused columns: 'note'", "films: no time column, so held-out items are drawn at random"]


def test_much_memory_is_said_with_its_parts(data, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 20)
    said = list(announce.announcements(RunConfig.checked(method="fedease"), data))
    assert len(said) == 1 and said[0].startswith("memory: the parameters take much of this machine's 0 GB: the server")


@pytest.mark.parametrize(
    ("method", "server", "devices"),
    [
        (fr.FedEASE(), 4 * (6 * 6 + 1), 0),
        (fr.FedMF(dim=8), 4 * 6 * 8, 3 * 4 * 8),
        (fr.EASE(), 0, 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_bytes_of_parameters(data, method, server, devices):
    assert announce.parameter_bytes(method, data) == (server, devices)


def test_long_runs_are_said_after_the_first_round():
    assert list(announce.costs(FIRST, 400)) == [
        "time: about 10 minutes for all 400 rounds, by the first one",
    ]


@pytest.mark.parametrize(
    ("given", "up"),
    [
        ({"method": "fedease"}, 4 * 6 * 7 // 2),
        ({"method": "fedmf", "settings": {"dim": 8}, "channel": [{"stage": "dense"}]}, 4 * 6 * 8),
        ({"method": "ease"}, 0),
    ],
)
def test_the_bytes_of_a_device(data, given, up):
    config = RunConfig.checked(**given)
    assert announce.device_bytes(config, config.build(), data)[0] == up
    if up:
        run = fr.train(config.build(), data, rounds=1, channel=config.channel or ())
        assert run.history[0]["up_bytes"] == up


@pytest.mark.parametrize("name", METHODS)
def test_traffic_is_said_before_a_run_of_any_method(data, name, monkeypatch):
    config = RunConfig.checked(method=name)
    up, down = announce.device_bytes(config, config.build(), data)
    assert min(up, down) >= 0
    monkeypatch.setattr(announce, "_MANY_BYTES", max(up, down, 1) - 1)
    said = list(announce.announcements(config, data))
    assert [line[:8] for line in said] == (["traffic:"] if max(up, down) else [])


@pytest.mark.parametrize("name", ["ease", "fedease"])
def test_a_large_system_is_said_before_it_is_solved(data, name, monkeypatch):
    monkeypatch.setattr(announce, "_LARGE_SYSTEM", 5)
    said = list(announce.announcements(RunConfig.checked(method=name), data))
    assert said == [f"time: '{name}' solves for 6 items in closed form, which takes long"]
