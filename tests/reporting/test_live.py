"""The live line of a run that a Python program started."""

import io
import logging
import sys
import types

import pytest

from federec.reporting.live import live

LINE = {"round": 1, "loss": 0.5, "valid": {"hr@10": 0.25}, "seconds": {"train": 1.0, "evaluate": 0.5}}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def play(wanted, on_round=None):
    with live(wanted, on_round) as called:
        logging.getLogger("federec").info("compiling kernels")
        for number in range(1, 4):
            called({**LINE, "round": number}, 3)


def test_a_terminal_has_one_line_that_changes_and_is_gone_at_the_end(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    play(None)
    shown = sys.stderr.getvalue().split("\r\033[K")
    assert shown[1:4] == [
        "starting",
        "compiling kernels",
        "round 1/3  loss 0.5  valid hr@10 0.2500 of 100 items  1.50 s a round",
    ]
    assert shown[-2].startswith("round 3/3") and shown[-1] == ""
    assert "\n" not in sys.stderr.getvalue()


@pytest.mark.parametrize("wanted", [None, False])
def test_a_pipe_stays_silent_unless_asked(monkeypatch, wanted):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    play(wanted)
    assert sys.stderr.getvalue() == ""


def test_a_pipe_gets_lines_if_asked(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    play(True)
    lines = sys.stderr.getvalue().splitlines()
    assert lines[0] == "starting" and lines[-1].startswith("round 3/3")


def test_false_silences_a_terminal_and_the_own_function_is_always_called(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    rounds = []
    play(False, lambda line, of: rounds.append((line["round"], of)))
    assert rounds == [(1, 3), (2, 3), (3, 3)] and sys.stderr.getvalue() == ""


def test_a_notebook_updates_one_display(monkeypatch):
    shown = []
    handle = types.SimpleNamespace(update=lambda bundle, raw: shown.append(bundle["text/plain"]))
    display = types.SimpleNamespace(display=lambda bundle, raw, display_id: handle)
    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    play(None)
    assert shown[0] == "starting" and shown[-1].startswith("round 3/3")


def test_a_run_that_fails_leaves_no_handler_behind(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    log = logging.getLogger("federec")
    before, level = list(log.handlers), log.level
    with pytest.raises(ValueError, match="broken"), live(None):
        raise ValueError("broken")
    assert (log.handlers, log.level) == (before, level)
