from federec.reporting.curves import svg_curves


def history(rounds=3, **more):
    return [
        {"round": k, "loss": 1 / k, "valid": {"hr@10": 0.1 * k}, "test": {"hr@10": 0.2, "ndcg@10": 0.1}} | more
        for k in range(1, rounds + 1)
    ]


def test_curves_pass_over_rounds_without_a_loss():
    lines = [line | {"loss": loss} for line, loss in zip(history(), (3e28, None, None), strict=True)]
    drawn = svg_curves(lines, 1)
    assert drawn.count("<circle") == 1
    assert "nan" not in drawn.lower()
    assert svg_curves([line | {"loss": None} for line in lines], 1).count("role='img'") == 1


def test_costs_are_drawn_where_they_are_known():
    lines = history(up_bytes=2000.0, down_bytes=3000.0, seconds={"train": 1.0, "evaluate": 0.5})
    drawn = svg_curves(lines, 1, "node", costs=True)
    assert "Kilobytes a round, per node" in drawn and "data-values='2 2 2'" in drawn
    assert "Seconds a round" in drawn
    central = svg_curves(
        history(up_bytes=None, down_bytes=None, seconds={"train": 1.0, "evaluate": 0.5}), 1, costs=True
    )
    assert "Kilobytes" not in central
    assert "Seconds a round" not in svg_curves(history(), 1, costs=True)


def test_a_long_run_is_thinned():
    drawn = svg_curves(history(1800), 7, costs=True)
    assert "Of 1,800 rounds, every 4th is drawn." in drawn
    assert " 7 8 12 " in drawn, "the chosen round is drawn, too"
    assert len(drawn) < 400_000
