from dataclasses import replace

from federec.data.notebook import plain


def test_a_notebook_shows_what_describe_says(random_split):
    data = replace(random_split(users=10, items=40).data, name="<my> data")
    assert repr(data) == f"Interactions(<my> data: 10 users, 40 items, {len(data)} interactions)"
    html = data._repr_html_()
    assert "&lt;my&gt; data" in html and "<my>" not in html
    assert "<th style='text-align:left'>users</th><td style='text-align:left'>10</td>" in html
    assert "sha256" not in html


def test_values_are_written_for_people():
    assert plain({"min": 1, "mean": 2.5}) == "min 1, mean 2.5"
    assert plain(["2000", "2003"]) == "2000 .. 2003"
    assert [plain(value) for value in (None, 1_000_209, 0.123456)] == ["none", "1,000,209", "0.1235"]
