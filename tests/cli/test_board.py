from federec.cli.board import Board


def test_the_board_shows_the_newest_of_every_device():
    board = Board()
    for event in (
        {"event": "asked", "kind": "train", "round": 2, "devices": 3},
        {"event": "reply", "kind": "train", "round": 2, "device": "1111111", "users": 4},
        {"event": "rejected", "round": 2, "device": "2222222", "reason": "norm", "detail": "large"},
        {"event": "missing", "kind": "train", "round": 2, "device": "3333333"},
        {"event": "round", "round": 2, "rounds": 5, "loss": 0.5, "hr@10": 0.25, "seconds": 6.1},
    ):
        board.take(event)
    assert board.title == "round 2 of 5: valid hr@10 0.2500, 6.1 s"
    cells = [list(column.cells) for column in board.table().columns]
    assert cells[0] == ["111111", "222222", "333333"]
    assert cells[3] == ["train: answered", "refused: norm", "did not answer in time"]
