import io
import logging
import os
import pty
import select
import sys

import pytest

from federec.cli.progress import progress

LINE = {"round": 1, "loss": 0.25, "valid": {"hr@10": 0.5}, "seconds": {"train": 0.5, "evaluate": 0.25}}


def test_quiet_shows_nothing(capsys):
    with progress(quiet=True) as on_round:
        on_round(LINE, 3)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_a_line_now_and_then(capsys):
    with progress(quiet=False) as on_round:
        for number in range(1, 101):
            on_round(LINE | {"round": number}, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "round 1/100  loss 0.25  valid hr@10 0.5000 of 100 items  0.75 s a round"
    assert [line.split()[1] for line in lines] == ["1/100", *(f"{n}/100" for n in range(10, 101, 10))]


def test_a_method_without_a_loss(capsys):
    with progress(quiet=False) as on_round:
        on_round(LINE | {"loss": None}, 1)
    assert capsys.readouterr().err == "round 1/1  valid hr@10 0.5000 of 100 items  0.75 s a round\n"


def test_on_a_terminal_a_bar(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        with progress(quiet=False) as on_round:
            on_round(LINE | {"round": 2}, 3)
        terminal.flush()
        shown = ""
        while select.select([ours], [], [], 0.5)[0]:  # it comes in pieces
            shown += os.read(ours, 100_000).decode()
    os.close(ours)
    assert "2/3" in shown
    assert "valid hr@10 0.5000" in shown


def test_what_is_logged_is_shown_while_a_run_goes_on(capsys):
    log = logging.getLogger("federec")
    with progress(quiet=False):
        log.info("compiling kernels, once (about 10 s)")
    log.info("nobody listens any more")
    assert capsys.readouterr().err == "compiling kernels, once (about 10 s)\n"


def test_the_bar_goes_when_the_run_fails():
    assert isinstance(sys.stderr, io.TextIOBase)
    with pytest.raises(ValueError, match="x"), progress(quiet=False):
        raise ValueError("x")
