import json

from tests.web.node import needs_node, node

pytestmark = needs_node
GOOD = {"format": "federec-picks", "version": 1, "number": "77", "picks": [{"item": "a"}, {"item": "b"}, {"item": "a"}]}


def imported(*texts):
    body = """return texts.map((text) => {
      try { return portable.imported(text, (label) => label !== "b"); } catch (error) { return error.message; }
    });"""
    return node(["portable"], body, texts=texts)


def test_what_is_exported_can_be_imported():
    body = """const kept = { number: "123", picks: ["x", "y"] };
    const text = portable.exported(kept, new Map([["x", "Title of x"]]));
    return { text, again: portable.imported(text, () => true) };"""
    got = node(["portable"], body)
    assert got["again"] == {"kept": {"number": "123", "picks": ["x", "y"]}, "unknown": 0}
    assert json.loads(got["text"])["picks"][0] == {"item": "x", "title": "Title of x"}


def test_items_that_the_catalogue_lacks_are_counted_and_repeats_dropped():
    assert imported(json.dumps(GOOD)) == [{"kept": {"number": "77", "picks": ["a"]}, "unknown": 1}]


def test_a_bad_number_is_replaced():
    numbers = [None, 5, "-1", "1e3", "99999999999999999999", str(2**62)]
    found = imported(*(json.dumps(GOOD | {"number": number}) for number in numbers))
    for number, read in zip(numbers, found, strict=True):
        assert read["kept"]["number"] != number and 0 <= int(read["kept"]["number"]) < 2**62


def test_a_file_that_is_something_else_is_refused_in_one_line():
    files = {
        "{": "not JSON",
        "null": "holds no picks",
        "[]": "holds no picks",
        json.dumps(GOOD | {"picks": "a"}): "holds no picks",
        json.dumps(GOOD | {"version": 2}): "another version",
        json.dumps(GOOD | {"picks": [None]}): "changed or damaged",
        json.dumps(GOOD | {"picks": [{"item": 3}]}): "changed or damaged",
        json.dumps(GOOD | {"picks": [{"item": "x" * 1001}]}): "changed or damaged",
        " " * (4 * 2**20 + 1): "too large",
    }
    for said, remedy in zip(imported(*files), files.values(), strict=True):
        assert remedy in said and "\n" not in said
