"""A device answers once."""

import pytest

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from federec.errors import UserError
from federec.network.keys import Key
from federec.network.ledger import Answer, Ledger, Spent
from federec.network.vault import Vault


@pytest.fixture
def vault(tmp_path):
    return Vault.create(tmp_path / "vault.db", Key("file", b"k" * 32))


@pytest.fixture
def keep(vault):
    def make(kind, run, round_, digest="d", content=b"bytes", rho=0.0):
        with vault.change():
            Ledger(vault).keep(kind, Answer(run, round_, digest, content), rho)

    return make


def test_the_same_order_gets_the_same_bytes_and_another_one_nothing(vault, keep):
    ledger = Ledger(vault)
    assert ledger.answered("train", "films", 1, "d") is None
    keep("train", "films", 1, content=b"line\nbreak\x00")
    assert ledger.answered("train", "films", 1, "d") == b"line\nbreak\x00"
    for round_, digest in ((1, "other"), (0, "d")):
        with pytest.raises(UserError, match="answers once"):
            ledger.answered("train", "films", round_, digest)
    assert ledger.answered("train", "films", 2, "d") is None
    assert ledger.answered("evaluate", "films", 1, "d") is None


def test_a_run_that_another_one_has_followed_never_comes_back(vault, keep):
    keep("train", "films", 5)
    keep("evaluate", "films", 5)
    keep("train", "books", 1)
    ledger = Ledger(vault)
    for kind in ("train", "evaluate", "full"):
        with pytest.raises(UserError, match="'films' has ended here"):
            ledger.answered(kind, "films", 6, "d")
    assert ledger.answered("evaluate", "books", 1, "d") is None
    assert ledger.spent.runs == ("films", "books")


def test_the_full_evaluation_is_told_once_in_a_run(vault, keep):
    keep("full", "films", 3)
    for round_ in (2, 4):
        with pytest.raises(UserError, match="answers once"):
            Ledger(vault).answered("full", "films", round_, "d")
    assert Ledger(vault).answered("full", "films", 3, "d") == b"bytes"


def test_what_was_given_adds_up(vault, keep):
    assert Ledger(vault).spent == Spent()
    keep("train", "films", 1, rho=0.25)
    keep("evaluate", "films", 1, rho=0.25)
    keep("train", "films", 2, rho=0.5)
    assert (Ledger(vault).spent.rounds, Ledger(vault).spent.rho) == (2, 0.75)
