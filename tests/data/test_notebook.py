from dataclasses import replace

from federec.data.notebook import html, plain


def test_a_notebook_shows_what_describe_says(random_split):
    data = replace(random_split(users=10, items=40).data, name="<my> data")
    assert repr(data) == f"Interactions(<my> data: 10 users, 40 items, {len(data)} interactions)"
    shown = data._repr_html_()
    assert "&lt;my&gt; data" in shown and "<my>" not in shown
    assert "<th style='text-align:left'>users</th><td style='text-align:left'>10</td>" in shown
    assert "sha256" not in shown


def test_rows_that_say_nothing_are_left_out(random_split):
    data = replace(random_split(users=10, items=40).data, columns={"user": "user", "item": "item"})
    assert not [
        word for word in ("columns", "duplicates", "repeats", "rating</th>", "known before") if word in html(data)
    ]
    told = html(replace(data, columns={"user": "uid", "item": "item"}, repeated=2, unused=("x",)))
    cell = "</th><td style='text-align:left'>"
    assert f"columns{cell}user uid<" in told and f"kept repeats{cell}2<" in told and f"unused columns{cell}x<" in told
    assert f"times{cell}none<" in html(replace(data, times=None))


def test_values_are_written_for_people():
    assert plain({"min": 1, "mean": 2.5}) == "min 1, mean 2.5"
    assert plain(["2000", "2003"]) == "2000 .. 2003"
    assert [plain(value) for value in (None, 1_000_209, 0.123456)] == ["none", "1,000,209", "0.1235"]
