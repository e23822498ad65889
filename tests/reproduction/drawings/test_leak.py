from federec.reproduction.drawings.leak import caption, data
from federec.reproduction.drawings.training import trained


def test_the_curves_are_those_of_the_runs(request_):
    rows = data(request_)
    assert [row["round"] for row in rows] == [1, 2, 3] * 2
    for protocol in ("paper", "clean"):
        history = trained(request_, "negative-count", protocol=protocol).history
        expected = [line["test"]["hr@10"] for line in history]
        assert [row["hr@10"] for row in rows if row["protocol"] == protocol] == expected


def test_the_caption_has_the_last_values():
    rows = [
        {"protocol": protocol, "round": round_, "hr@10": value * round_}
        for protocol, value in (("paper", 0.4), ("clean", 0.05))
        for round_ in (1, 2)
    ]
    said = caption(rows)
    assert "80.0 % after 2 rounds" in said and "10.0 %" in said and "40.0 %" not in said
