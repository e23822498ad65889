import copy

import pytest
from tests.reporting.reader import Reader

from federec.reporting.comparison import Compared, Same, html_comparison, megabytes_sent, why_not_seconds

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1}
SAME = Same("ml-100k, protocol clean", "943 users.")
RESULT = {
    "seed": 0,
    "rounds": 3,
    "best_round": 2,
    "test": {"full": {"ndcg@10": 0.2}},
    "communication": {"up_bytes_per_device_round": 1e6},
    "config": {"participation": 0.5, "device": "cpu"},
    "seconds": {"total": 4.0},
    "engine": {"used": "torch", "reason": ""},
    "machine": MACHINE,
}


def compared(row="a", rounds=3, same=SAME, **changes):
    history = [
        {"round": k, "valid": {"hr@10": 0.1 * k}, "test": {"hr@10": 0.1}, "valid_full": {"ndcg@10": 0.01 * k}}
        for k in range(1, rounds + 1)
    ]
    return Compared(row, same, copy.deepcopy(RESULT) | {"rounds": rounds} | changes, history)


def read(*runs):
    rows = [(run.same, [run.row, "0.2", "+0.1", "better"]) for run in runs]
    return Reader(html_comparison(["method", "ndcg", "difference", "verdict"], rows, "What it is.", runs))


def test_all_runs_are_curves_of_one_figure():
    page = read(compared(), compared("b", rounds=5), compared("b", rounds=4, seed=1))
    curves = page.attributes("g")[:3]
    assert [curve["data-name"] for curve in curves] == ["a", "b, seed 0", "b, seed 1"]
    assert curves[0]["data-values"] == "0.01 0.02 0.03 - -"
    assert ["a", "better", "+0.1", "0.2"] in page.rows and "What it is." in page.text


def test_costs_are_means_over_seeds():
    page = read(compared(), compared("b"), compared("b", seed=1, seconds={"total": 8.0}))
    assert ["1 a", "1.5", "0.2000"] in page.rows, "three rounds, half of the devices, a megabyte each"
    assert ["2 b", "6", "0.2000"] in page.rows


def test_other_data_has_other_figures():
    page = read(compared(), compared("b", same=Same("ml-1m, protocol clean", "6,040 users.")))
    assert "ml-1m, protocol clean" in page.text
    assert all("b" not in attrs["aria-label"].split(": ")[-1] for attrs in page.attributes("svg") if "role" in attrs)
    assert "What accuracy costs" not in page.text, "one run has nothing to be compared with"


def test_runs_without_bytes_are_named():
    page = read(compared(), compared("b"), compared("ease", communication={"up_bytes_per_device_round": None}))
    assert "not federated: ease." in page.text
    assert megabytes_sent(RESULT | {"communication": {"up_bytes_per_node_round": 1.0, "users_per_node": 3}}) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        (
            {"machine": MACHINE | {"cpu": "another CPU"}},
            "made on different machines (a CPU, 1 thread on 2 cores; another",
        ),
        ({"machine": MACHINE | {"threads": 2}}, "made on different machines"),
        ({"engine": {"used": "fused", "reason": ""}}, "made by different engines (fused on cpu; torch on cpu)"),
        ({"machine": None}, "do not say on which machine"),
    ],
)
def test_seconds_are_compared_on_one_machine_and_engine(changes, says):
    other = {key: value for key, value in (RESULT | changes).items() if value is not None}
    reason = why_not_seconds([RESULT, other])
    assert (says in reason) if says else reason == ""
    page = read(compared(), Compared("b", SAME, other, compared().history))
    assert ("Test NDCG@10 against seconds" in page.text) == (not says)
    assert ("Seconds are not compared" in page.text) == bool(says)
