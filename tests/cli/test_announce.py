from dataclasses import replace

import numpy as np
import pytest

import federec as fr
from federec.cli import announce
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


def test_long_runs_and_large_messages_are_said_after_the_first_round():
    assert list(announce.costs(FIRST | {"up_bytes": 27.9e6, "down_bytes": 1e6}, 400)) == [
        "traffic: in round 1 a device sends 27.9 MB and receives 1.0 MB",
        "time: about 10 minutes for all 400 rounds, by the first one",
    ]
