import pytest

pytest.importorskip("dp_accounting", reason="pip install federec[privacy]")

from federec.errors import UserError
from federec.privacy.account import Account
from federec.privacy.cost import Gaussian, Laplace


def test_an_account_pays_for_rounds_up_to_its_limit():
    account = Account(Laplace(0.5), limit=1.6)
    for round_ in (1, 2, 3):
        assert account.affords(round_, repeatable=False)
        account = account.charged(round_, repeatable=False)
    assert account.epsilon == 1.5 and not account.affords(4, repeatable=False)
    assert Account(Gaussian(1.0)).affords(10**6, repeatable=True)  # no limit


def test_a_round_that_is_repeated_costs_again_unless_it_releases_the_same():
    account = Account(Laplace(0.5), limit=1.0).charged(1, repeatable=True)
    assert account.charged(1, repeatable=True) == account
    again = account.charged(1, repeatable=False)
    assert (again.rounds, again.last, again.epsilon) == (2, 1, 1.0)
    assert not again.affords(1, repeatable=False) and again.affords(1, repeatable=True)


def test_an_account_is_kept_as_text():
    account = Account(Laplace(0.5)).charged(1, False).charged(4, False)
    assert Account(Laplace(0.5)).read(account.text(), "account.json") == account
    for text in ("", "{}", '{"rounds": "x", "last": 1}', "[]"):
        with pytest.raises(UserError, match=r"account.json: is damaged; what the run has used up is not known"):
            account.read(text, "account.json")
