from dataclasses import fields

import pytest
import torch

from federec.checks.comparing import Broken
from federec.checks.rounds import FIELDS, no_undeclared
from federec.cohort.update import Update


def test_an_update_has_these_fields_and_no_others():
    assert tuple(field.name for field in fields(Update)) == FIELDS == ("n_items", "ids", "counts", "rows", "layers")


def test_rows_know_whose_they_are():
    rows = {"a": torch.zeros(5, 4), "b": torch.zeros(5, 2)}
    update = Update(9, torch.tensor([1, 5, 0, 1, 7]), torch.tensor([2, 0, 3]), rows, {"net": torch.zeros(3, 2)})
    assert update.owner.tolist() == [0, 0, 2, 2, 2]
    assert (len(update), update.width, [*update.values()]) == (3, 6, ["a", "b", "net"])


def test_a_private_name_in_a_message_is_noticed(small):
    with pytest.raises(Broken, match="'user' is sent, but `sends` does not declare it"):
        no_undeclared(small("fedmf"), {"items": torch.zeros(1, 4), "user": torch.zeros(1, 4)})
