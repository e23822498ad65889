"""Federations that are attacked, in this process."""

import pytest

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from tests.attacks.hostile import Attacker, prepared
from tests.network.conftest import federation
from tests.network.federated import hurry

__all__ = ["federation"]


@pytest.fixture
def attacker(tmp_path, monkeypatch, random_split):
    """A server of its own mind, with one-user devices that have the default policy."""
    hurry(monkeypatch)
    made = []

    def make(method="pfedrec", nodes=6, items=30, folder="run", **how):
        data = random_split(users=nodes, items=items, least=4, most=9).data
        path = prepared(tmp_path / folder, data, method, nodes, **how)
        made.append(Attacker(path))
        return made[-1]

    yield make
    for each in made:
        each.close()
