"""The work of an experiment, in processes that each do one job after the other.

A job is all runs of a row on a data set of one kind, after the search for their settings if they are tuned. It tells
what it has finished line by line, so that an interruption costs at most the run or trial that was going on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any

import torch

from federec.data.interactions import Interactions
from federec.data.sets import load
from federec.errors import UserError
from federec.reproduction.budget import Search
from federec.reproduction.cells import Cell, Kind, Row
from federec.reproduction.records import Book, Line, line_of_run, revision
from federec.runtimes.local import run


@dataclass(frozen=True)
class Job:
    """What a process is asked for."""

    row: Row
    data: str
    kind: Kind
    seeds: tuple[int, ...]
    """Those that are still to be run."""
    rounds: int | None
    device: str
    trials: int
    """Trials of the search; 0 where it is finished, or not needed."""
    before: list[Line]
    """Finished trials of an unfinished search."""
    best: dict[str, Any] | None
    """What a finished search found."""

    def work(self) -> Iterator[Line]:
        """Everything that is to be done, line by line."""
        data, best = load(self.data), self.best
        if self.trials:
            search = Search.of(self.row, self.data, data, self.rounds, self.device)
            for line in search.lines(data, self.before, self.trials):
                best = line.get("best")
                yield {"data": self.data, "row": self.row.label, "commit": revision(), **line}
        for seed in self.seeds:
            cell = Cell(self.row, self.data, self.kind, seed, self.rounds)
            yield line_of_run(cell, run(cell.config(best, self.device), data, None, brief=True))

    @property
    def words(self) -> str:
        return f"{self.row.label} {self.data} {self.kind}"


def jobs_of(cells: Iterable[Cell], book: Book, trials: int, device: str) -> list[Job]:
    """What is left to do for these cells, the data sets one after the other."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.data, cell.row.label, cell.kind), []).append(cell)
    jobs, data = [], cache(load)
    for group in groups.values():
        first = group[0]
        found = _finished(first, book, trials, data) if first.kind == "tuned" else None
        missing = first.kind == "tuned" and found is None
        seeds = tuple(cell.seed for cell in group if missing or book.run(cell) is None)
        if not seeds:
            continue
        jobs.append(
            Job(
                *(first.row, first.data, first.kind, seeds, first.rounds, device),
                trials=trials if missing else 0,
                before=book.trials(first.row, first.data) if missing else [],
                best=None if found is None else found["best"],
            )
        )
    return jobs


def _finished(cell: Cell, book: Book, trials: int, data: Callable[[str], Interactions]) -> Line | None:
    """The finished search for the settings of a cell, if it is what would be searched today. Without the data nobody
    can tell, or search again."""
    found = book.search(cell.row, cell.data)
    try:
        search = Search.of(cell.row, cell.data, data(cell.data), cell.rounds) if found else None
    except UserError:
        return found
    return found if found and search and search.is_answered(found, trials) else None


class _Worker:
    """A process that does jobs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def do(self, job: Job) -> Iterator[Line]:
        """The lines of a job. Raises a `UserError` where it fails; then the next one gets a new process."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asdict(job)) + "\n")
        process.stdin.flush()
        for text in process.stdout:
            line = json.loads(text)
            if line["line"] == "end":
                return
            if line["line"] == "failed":
                raise UserError(line["words"])
            yield line
        raise UserError(f"its process ended with exit code {process.wait()}")

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "federec.reproduction.jobs"]
            environment = {"OMP_NUM_THREADS": "1", **os.environ}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        return self._process

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def run_jobs(todo: Sequence[Job], book: Book, processes: int, say: Callable[[str], None]) -> list[tuple[Job, str]]:
    """Do the jobs, so many at the same time, and keep in the book what they tell. Returns the jobs that failed, each
    with the reason."""
    failures: list[tuple[Job, str]] = []
    workers = [_Worker() for _ in range(processes)]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def one(job: Job) -> tuple[Job, list[Line], str]:
        worker, lines = idle.get(), []
        try:
            for line in worker.do(job):
                book.add(line)
                lines.append(line)
            return job, lines, ""
        except UserError as error:
            return job, lines, str(error)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(processes) as pool:
        try:
            waiting = [pool.submit(one, job) for job in todo]
            for count, future in enumerate(as_completed(waiting), 1):
                job, lines, error = future.result()
                values = [line["test"]["full"]["ndcg@10"] for line in lines if line["line"] == "run"]
                mean = f"NDCG@10 {100 * sum(values) / len(values):.2f} over {len(values)} seeds" if values else "done"
                say(f"{count}/{len(todo)} {job.words}: {f'FAILED: {error}' if error else mean}")
                if error:
                    failures.append((job, error))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            for worker in workers:
                worker.stop()
    return failures


def _serve() -> None:
    """The process of a worker: jobs come as lines, and their lines go back."""
    revision()  # of the sources that are loaded, whatever is committed while this process lives
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, which stops it
    out, sys.stdout = sys.stdout, sys.stderr  # whatever a method prints is no line of a job
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        asked = json.loads(lines.get())
        job = Job(**asked | {"row": Row(**asked["row"] | {"plugins": tuple(asked["row"]["plugins"])})})
        last: Line = {"line": "end"}
        try:
            for line in job.work():
                print(json.dumps(line), file=out, flush=True)
        except Exception as error:  # one job must not end the others
            last = {"line": "failed", "words": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(last), file=out, flush=True)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # other processes share the GPU


def _listen(lines: SimpleQueue[str]) -> None:
    """Take in lines, also while a job is going on. When the process that asks has ended, so does this one: nobody would
    keep what the job still finds."""
    for text in sys.stdin:
        lines.put(text)
    os._exit(0)


if __name__ == "__main__":
    _serve()
