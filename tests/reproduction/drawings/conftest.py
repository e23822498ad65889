"""A small file of interactions, and a folder of runs that the tests of all figures share."""

import random

import pytest

pytest.importorskip("matplotlib", reason="pip install federec[results]")
from federec.reproduction.drawings.base import Request


@pytest.fixture(scope="session")
def request_(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    draw, lines = random.Random(0), ["user,item,timestamp"]
    for user in range(16):
        lines += [f"u{user},i{item},{time}" for time, item in enumerate(draw.sample(range(30), draw.randint(5, 15)))]
    data = folder / "ratings.csv"
    data.write_text("\n".join(lines) + "\n")
    return Request(str(data), 3, 0, folder / "runs", lambda line: None)
