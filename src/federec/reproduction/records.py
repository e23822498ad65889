"""What is kept of an experiment: a line of JSON for each run, trial and search, in one file for each data set.

Pages are made of these lines and of nothing else. A line names the commit that made it. Of ranks only what is needed to
compare HR@10 and NDCG@10 against all items is kept, a few hundred bytes for a thousand users, so that the lines of all
results pages can be published with them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

import federec
from federec.errors import UserError
from federec.files import cannot_write, make_folder, read_bytes, write_atomic
from federec.reproduction.cells import Cell, Row
from federec.runs.config import RunConfig
from federec.runtimes.run import Run

Line = dict[str, Any]
MISSED = 10
"""The rank of all items that are not among the first ten."""
_METRICS = ("hr@10", "ndcg@10")
_RANKED = ("test full", "fresh full")
_CONFIGURED = ("settings", "rounds", "participation", "ties")


def line_of_run(cell: Cell, run: Run) -> Line:
    """The record of a finished run."""
    result, ranks = run.result, run.ranks
    kinds = {name.removeprefix("test "): values for name, values in ranks.items() if name in _RANKED}
    return {
        **_place(cell.row, cell.data),
        "line": "run",
        "kind": cell.kind,
        "seed": cell.seed,
        "commit": revision(),
        "config": configured(run.config),
        **{key: result[key] for key in ("best_round", "engine", "communication")},
        "rounds": result["rounds"],
        "device": run.config.device,
        "test": _metrics(result["test"]),
        "ranks": {kind: pack(values.numpy()) for kind, values in kinds.items()},
        "notes": [] if cell.seed else _notes(run.history),
    }


def configured(config: RunConfig) -> dict[str, Any]:
    """What two runs of a cell must have in common."""
    values = config.model_dump(mode="json")
    return {key: values[key] for key in _CONFIGURED}


def _same(kept: Mapping[str, Any], config: RunConfig) -> bool:
    """Whether a run was configured like this. A setting that its method has got since then had its default value."""
    today = json.loads(json.dumps(configured(config)))
    new = today["settings"].keys() - kept["settings"].keys()
    if new:
        plain = json.loads(config.model_copy(update={"settings": {}}).build().model_dump_json())
        kept = {**kept, "settings": {**kept["settings"], **{name: plain[name] for name in new}}}
    return bool(kept == today)


def _place(row: Row, data: str) -> dict[str, str]:
    return {"data": data, "row": row.label}


def _metrics(test: Mapping[str, Any]) -> dict[str, Any]:
    """What pages show of the metrics of test; `fresh` has two rankings of its own."""
    shown = {kind: {name: round(test[kind][name], 6) for name in _METRICS} for kind in ("sampled", "full")}
    return shown | ({"fresh": _metrics(test["fresh"])} if "fresh" in test else {})


def _notes(history: list[Line]) -> list[Line]:
    """Figures of the item table in up to twelve rounds; its spectrum in the first and in the last of them."""
    if not all(any(name.endswith("effective rank") for name in line.get("notes", ())) for line in history):
        return []
    chosen = np.unique(np.linspace(0, len(history) - 1, 12).round().astype(int))
    return [
        {"round": history[i]["round"], "notes": _short(history[i]["notes"], spectrum=i in (0, len(history) - 1))}
        for i in chosen.tolist()
    ]


def _short(notes: Mapping[str, Any], spectrum: bool) -> dict[str, Any]:
    kinds = ("effective rank", "mixing weight", *["spectrum"] * spectrum)
    kept = {name: value for name, value in notes.items() if name.endswith(kinds)}
    return {n: [float(f"{x:.3g}") for x in v] if isinstance(v, list) else float(f"{v:.4g}") for n, v in kept.items()}


def pack(ranks: NDArray[np.int64]) -> str:
    """Ranks as text: those above ten, and of users without a held-out item, are `MISSED`."""
    small = np.where((ranks < 0) | (ranks > MISSED), MISSED, ranks).astype(np.uint8)
    return base64.b85encode(zlib.compress(small.tobytes(), 9)).decode()


def unpack(text: str) -> NDArray[np.int64]:
    """Ranks of such a text."""
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8).astype(np.int64)


@cache
def revision() -> str:
    """The commit that last changed federec's sources, or its version where they are not in a git checkout. Pages and
    records that are committed beside them change nothing. Git is asked once: a process goes on with what it loaded."""
    known = os.environ.get("FEDEREC_COMMIT")
    if known:
        return known
    package = Path(federec.__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", package, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".")
        return git("log", "-1", "--format=%h", "--", ".") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return federec.__version__


class Book:
    """The records in a folder."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self._runs: dict[tuple[str, str, str, int], Line] = {}
        self._searches: dict[tuple[str, str], Line] = {}
        self._trials: dict[tuple[str, str], list[Line]] = {}
        for file in sorted(path.glob("*.jsonl")):
            whole, _, _ = read_bytes(file).rpartition(b"\n")  # an interrupted line has no end
            for number, text in enumerate(whole.splitlines(), 1):
                try:
                    self._take(json.loads(text))
                except (ValueError, KeyError, TypeError):
                    raise UserError(f"{file}, line {number}: is damaged; remove it") from None

    def _take(self, line: Line) -> None:
        place = (line["row"], line["data"])
        match line["line"]:
            case "run":
                self._runs[(*place, line["kind"], line["seed"])] = line
            case "trial":
                self._trials.setdefault(place, []).append(line)
            case "search":
                self._searches[place] = line
                self._trials.pop(place, None)

    def add(self, line: Line) -> None:
        """Keep a line, also on disk. Threads may do so at the same time."""
        make_folder(self.path)
        file = self._file(line["data"])
        try:
            with self._lock, file.open("a", encoding="utf-8") as out:
                self._take(line)
                out.write(_text(line))
        except OSError as error:
            raise cannot_write(file, error) from None

    def _file(self, data: str) -> Path:
        return self.path / f"{Path(data).name.split('.')[0]}.jsonl"

    def search(self, row: Row, data: str) -> Line | None:
        """What the search for a row's settings on a data set found, if it is finished."""
        return self._searches.get((row.label, data))

    def trials(self, row: Row, data: str) -> list[Line]:
        """The finished trials of a search that is not finished."""
        return self._trials.get((row.label, data), [])

    def config(self, cell: Cell, device: str = "cpu") -> RunConfig | None:
        """The configuration of a cell; None for a tuned one whose search is not finished."""
        if cell.kind != "tuned":
            return cell.config(None, device)
        found = self.search(cell.row, cell.data)
        return None if found is None else cell.config(found["best"], device)

    def run(self, cell: Cell) -> Line | None:
        """The record of a cell. A run with other settings than today's counts as none."""
        line, config = self._runs.get((cell.row.label, cell.data, cell.kind, cell.seed)), self.config(cell)
        if line is None or config is None or not _same(line["config"], config):
            return None
        return line

    def tidy(self) -> None:
        """Write all files anew: sorted, without what later lines have replaced."""
        files: dict[Path, list[Line]] = {}
        lines: Iterable[Line] = (
            *self._searches.values(),
            *chain.from_iterable(self._trials.values()),
            *self._runs.values(),
        )
        for line in lines:
            files.setdefault(self._file(line["data"]), []).append(line)
        for file, found in files.items():
            found.sort(key=lambda line: (line["row"], line["line"], line.get("kind", ""), line.get("seed", 0)))
            write_atomic(file, "".join(map(_text, found)))


@contextmanager
def at_work(path: Path) -> Iterator[Book]:
    """The records in a folder, while this process adds to them: another one that tidied them would lose what it did
    not know."""
    make_folder(path)
    lock = FileLock(path / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        remedy = "wait for it, or name another --out"
        raise UserError(f"{path}: another `federec reproduce` is at work on these records; {remedy}") from None
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        yield Book(path)
    finally:
        lock.release()


def _text(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
