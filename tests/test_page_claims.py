"""What pages say in numbers and names is what figures, records and tests have."""

import json
import re
from pathlib import Path

import pytest

from federec.network.policy import epsilon

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHOWN = [
    (page.name, name)
    for page in sorted(DOCS.glob("*.md"))
    for name in sorted(set(re.findall(r"\(figures/([\w-]+)\.csv\)", page.read_text(encoding="utf-8"))))
]


@pytest.mark.parametrize(("page", "name"), SHOWN, ids=lambda value: value)
def test_a_page_that_shows_a_figure_has_its_caption(page, name):
    """Another test compares the caption with the numbers."""
    _title, _image, caption, *_ = (DOCS / "figures" / f"{name}.md").read_text(encoding="utf-8").split("\n\n")
    assert caption in (DOCS / page).read_text(encoding="utf-8")


def test_the_leak_on_built_in_data_is_the_one_that_was_measured():
    leak = json.loads((DOCS / "first-screen.json").read_text(encoding="utf-8"))["leak"]
    said = f"HR@10 {leak['paper']:.3f} under `paper` and {leak['clean']:.3f} under\n`clean`"
    assert said in (DOCS / "protocols.md").read_text(encoding="utf-8")


def test_serving_is_as_fast_as_the_readme_says():
    (bound,) = re.findall(
        r"99 % of each kind of request are answered within (\d+) ms", (ROOT / "README.md").read_text("utf-8")
    )
    section = (DOCS / "benchmarks.md").read_text("utf-8").split("<!-- serving -->")[1].split("<!-- end serving -->")[0]
    rows = re.findall(r"^\| ml-1m-\S+, [\w ]+\| ([\d,]+) \| \S+ \| ([\d.]+)(us|ms|s) \|", section, re.M)
    assert len(rows) == 6
    for rate, slowest, unit in rows:
        assert int(rate.replace(",", "")) >= 1000
        assert float(slowest) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit] <= int(bound)


def defined(path):
    return set(re.findall(r"^def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.M))


def test_the_threat_model_names_tests_that_exist():
    lines = re.findall(
        r"^\| \w+ \| `(tests/\S+)` \| (.*) \|$", (DOCS / "threat-model.md").read_text(encoding="utf-8"), re.M
    )
    assert len(lines) > 20
    for path, tests in lines:
        assert {*re.findall(r"test_\w+", tests)} <= defined(path), path


def test_secure_aggregation_names_tests_that_exist():
    named = re.findall(r"`(test_\w+)`", (DOCS / "secure-aggregation.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert {*named} <= defined("tests/network/test_secure_sum.py")


def test_the_threat_model_counts_the_attacks_that_there_are():
    from tests.attacks.test_curious_server import ATTACKS
    from tests.attacks.test_malicious_device import RUNS
    from tests.attacks.test_malicious_server import ORDERS

    page = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    clear, hidden = (len(cases) for cases, _ in RUNS.values())
    assert f"{len(ATTACKS)} attacks over 10 rounds" in page
    assert f"{len(ORDERS)} kinds of orders" in page
    assert f"{clear} kinds without, {hidden} with secure sums" in page


def test_the_threat_model_says_what_noise_costs():
    page = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    assert f"one round costs epsilon {epsilon(2):.1f}, two rounds cost {epsilon(4):.1f}" in page
