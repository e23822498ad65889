"""`federec data describe`: how a file is read."""

import json

import pytest


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("user,item,stars,purchase_date,text\na,1,5,2020-01-01,x\na,2,3,2020-01-02,y\na,2,4,2020-01-03,z\n")
    return file


def test_roles_and_unused_columns_are_said(federec, mine):
    said = federec("data", "describe", mine).out
    assert "user=user, item=item, rating=stars, timestamp=purchase_date" in said
    assert "mine.csv: unused columns: 'text'" in said
    assert "last item by time" in said


def test_all_options_reach_the_reading(federec, mine, tmp_path):
    (tmp_path / "items.csv").write_text("item,title\n1,One\n")
    (tmp_path / "test.csv").write_text("user,item,stars,date\nb,1,5,2020-01-01\n")
    options = (
        "--min-rating",
        4,
        "--repeats",
        "keep",
        "--titles",
        tmp_path / "items.csv",
        "--test-file",
        tmp_path / "test.csv",
    )
    found = json.loads(federec("data", "describe", mine, *options, "--columns", "timestamp=3", "--json").out)
    assert (found["interactions"], found["below_min_rating"], found["items_with_title"]) == (3, 1, 1)
    assert found["split"] == (
        "given by the data; validation: the newest training item of each user; "
        "rows: 1 for training, 1 for validation, 1 for test"
    )
    assert found["columns"] == {"user": "user", "item": "item", "timestamp": "purchase_date", "rating": "stars"}


def test_describe_refuses(refused, mine, tmp_path):
    assert "no such file" in refused("data", "describe", mine, "--titles", tmp_path / "none.csv")
    assert "did you mean 'keep'?" in refused("data", "describe", mine, "--repeats", "kepe")
    assert "lower --min-rating" in refused("data", "describe", mine, "--min-rating", 6)


def test_describe_with_a_split(federec, refused, make_ratings, tmp_path):
    data = make_ratings(tmp_path / "ratings.csv")
    found = json.loads(federec("data", "describe", data, "--split", "ratio:0.5,0.25,0.25", "--json").out)
    assert found["split"].startswith("by ratio 0.5, 0.25, 0.25, each user's newest for test; rows: ")
    assert found["users_not_evaluated"] == 0
    assert "says no parts" in refused("data", "describe", data, "--split", "given")
