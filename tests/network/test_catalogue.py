"""A catalogue grows, and a code means the same item for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federec.errors import UserError
from federec.network.catalogue import Catalogue, is_text

labels = st.lists(st.text(), unique=True, max_size=12).map(tuple)


@given(labels, labels)
def test_growing_keeps_every_code(old, new):
    before = Catalogue(old)
    after = before.grown(new)
    assert after.extends(before)
    assert {*after.labels} == {*old, *new}
    assert all(after.code(label) == before.code(label) for label in old)
    assert before.extends(after) == (len(after) == len(before))
    assert (after.version == before.version) == (after.labels == before.labels)


@given(labels, labels)
def test_a_version_stands_for_the_items_in_their_order(one, other):
    assert (Catalogue(one).version == Catalogue(other).version) == (one == other)


def test_titles_are_no_part_of_the_version():
    assert Catalogue(("a",), {"a": "Heat"}).version == Catalogue(("a",)).version


@given(st.lists(st.text().filter(is_text), unique=True, min_size=1, max_size=12).map(tuple))
def test_a_file_holds_it(items):
    catalogue = Catalogue(items, {items[0]: "A title, é"})
    assert Catalogue.parse(catalogue.text()) == catalogue


def test_of_a_data_set(random_split):
    data = random_split(items=7).data
    catalogue = Catalogue.of(data)
    assert [catalogue.code(str(label)) for label in data.item_ids] == list(range(7))


def test_the_nearest_of_unknown_items():
    catalogue = Catalogue(("6", "heat-2"), {"6": "Heat (1995)"})
    for word, says in (
        ("Heat (1996)", "no item is called 'Heat (1996)' - did you mean '6' (Heat (1995))?"),
        ("heat2", "no item is called 'heat2' - did you mean 'heat-2'?"),
        ("zzz", "no item is called 'zzz'; the 2 items are like 6, heat-2"),
    ):
        with pytest.raises(UserError) as error:
            catalogue.code(word)
        assert str(error.value) == says
