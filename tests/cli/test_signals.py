"""A real process, stopped by real signals and real limits."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROUNDS = 100
FULL = Path("/dev/full")
PARTICIPATION = {"pfedrec": ("--participation", "0.3"), "local-only": ()}


def command(*args):
    return [sys.executable, "-m", "federec", *map(str, args)]


def lines_in(path):
    try:
        return (path / "rounds.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def train(method, data, out):
    settings = ("--set", "dim=4", "--set", "item_lr_factor=1", "--rounds", ROUNDS)
    return command("train", method, "--data", data, *PARTICIPATION[method], *settings, "--out", out)


def stop(args, out, how, beyond):
    """Start, wait until the folder holds `beyond` rounds, stop. Returns the exit code and what was said on stderr."""
    process = subprocess.Popen(args, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        limit = time.monotonic() + 60
        while lines_in(out) < beyond and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert not (out / "result.json").exists(), "it was over before the signal came"
    return process.returncode, said


def outcome(path):
    result = json.loads((path / "result.json").read_text())
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for record in (result, *lines):
        del record["seconds"]
    del result["peak_rss_mb"]
    return result, lines, {file.name: file.read_bytes() for file in (path / "model").iterdir()}


@pytest.mark.parametrize("method", ["pfedrec", pytest.param("local-only", marks=pytest.mark.slow)])
def test_stopped_twice_and_resumed_the_run_ends_the_same(tmp_path, make_ratings, federec, method, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # here; the processes to be stopped do wait for the disk
    data = make_ratings(tmp_path / "ratings.csv", users=60, items=80)
    out, whole = tmp_path / "run", tmp_path / "whole"
    assert federec(*train(method, data, whole)[3:]).code == 0
    if method == "pfedrec":
        code, said = stop(train(method, data, out), out, signal.SIGINT, 5)
        assert code == 130
        assert said.splitlines()[-1] == f"stopped; continue with: federec train --resume {out}"
        assert "Traceback" not in said
    else:
        assert stop(train(method, data, out), out, signal.SIGTERM, 5)[0] == -signal.SIGTERM
    kept = lines_in(out)
    assert kept >= 5
    assert stop(command("train", "--resume", out), out, signal.SIGKILL, kept + 5)[0] == -signal.SIGKILL
    assert federec("train", "--resume", out).code == 0
    assert outcome(out) == outcome(whole)
    assert list(out.rglob("*.part")) == []


def test_a_disk_that_is_full(tmp_path, make_ratings, federec):
    data = make_ratings(tmp_path / "ratings.csv")

    def limit():  # no file may grow beyond this, as if the disk were full
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    options = ("--data", data, "--rounds", 2, "--set", "dim=400", "--out", tmp_path / "run", "-q")
    args = command("train", "pfedrec", *options)
    ended = subprocess.run(args, capture_output=True, text=True, timeout=60, preexec_fn=limit)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "state-0.safetensors: cannot be written (File too large); free some space and try again" in ended.stderr
    assert federec("train", "--resume", tmp_path / "run", "-q").code == 0


def test_a_reader_that_goes_away():
    process = subprocess.Popen(command("data", "list"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(timeout=60) == 1


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_output_that_cannot_be_written():
    with FULL.open("w") as full:
        ended = subprocess.run(command("data", "list"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: No space left on device")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_search_that_is_stopped_only_says_how_to_go_on(tmp_path, make_ratings):
    pytest.importorskip("optuna", reason="pip install federec[results]")
    data = make_ratings(tmp_path / "ratings.csv")
    args = command("tune", "fedmf", "--data", data, "--rounds", 30, "--trials", 500, "--runs", tmp_path)
    process = subprocess.Popen(args, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("trial 1: ")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    said = [line for line in said.splitlines() if not line.startswith("trial ")]
    assert (process.returncode, said) == (
        130,
        ["", "stopped; the finished trials are kept, the same command goes on with them"],
    )
