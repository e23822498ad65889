"""How many requests `federec serve` answers, and how soon. wrk asks (https://github.com/wg/wrk, `apt install wrk`).

    python benchmarks/serving.py RUN [RUN ...] [--workers 2] [--connections 16] [--rate 1000] [--seconds 10] [--page]

wrk runs on the same machine and takes its part of the cores. At a rate, each connection waits between its requests; at
most, it asks again as soon as it is answered. `CPU` is the processor time that a request costs the server, whatever
else the machine does at the time; two cores divided by it are what an idle machine could answer.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

SCRIPT = """
local bodies, n = {%s}, 0
request = function()
  n = n %% #bodies + 1
  return wrk.format("POST", "/recommend", {["Content-Type"] = "application/json"}, bodies[n])
end
delay = function() return %d end
"""
_ASKED = 500  # different requests


def bodies(run: Path) -> dict[str, list[str]]:
    """Requests by kind: users of the run, and lists of five items that users had last."""
    import numpy as np

    from federec.runtimes.run import Run

    data = Run.load(run).data
    random = np.random.default_rng(0)
    users = random.choice(data.n_users, min(_ASKED, data.n_users), replace=False)
    lists = [data.items[data.users == user][-5:] for user in users]
    return {
        "one user": [f'{{"user": "{data.user_ids[user]}"}}' for user in users],
        "ten users": [f'{{"users": {[str(data.user_ids[user]) for user in random.choice(users, 10)]}}}' for _ in users],
        "five items": [f'{{"items": {[str(data.item_ids[item]) for item in items]}}}' for items in lists],
    }


def processor_seconds(process: int) -> float:
    """That a process and its children have used."""
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    found = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return found + sum(processor_seconds(int(child)) for child in children)


def load(url: str, script: Path, connections: int, seconds: int) -> tuple[float, str, str, int, bool]:
    """Requests a second, median and 99th percentile of wrk's, the number of requests, and whether all were answered."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate, half, most, count = (
        re.search(pattern, said)[1]  # type: ignore[index]
        for pattern in (r"Requests/sec:\s+([\d.]+)", r"\n\s+50%\s+(\S+)", r"\n\s+99%\s+(\S+)", r"(\d+) requests in")
    )
    return float(rate), half, most, int(count), "Non-2xx" not in said and "Socket errors" not in said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rate", type=int, default=1000, help="requests a second, about")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    from page import put, table

    rows = []
    for run in asked.runs:
        given = bodies(run)
        command = [sys.executable, "-m", "federec", "serve", str(run), "--port", "0", "--workers", str(asked.workers)]
        began = time.perf_counter()
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            print(line, end="", flush=True)
            start, url = time.perf_counter() - began, re.search(r"http://[\d.:]+", line)[0]  # type: ignore[index]
            with TemporaryDirectory() as folder:
                for kind, texts in given.items():
                    script = Path(folder) / "script.lua"
                    listed = ", ".join(f"[[{text}]]" for text in texts).replace("'", '"')
                    script.write_text(SCRIPT % (listed, 0))
                    most_rate = load(url, script, asked.connections, max(1, asked.seconds // 3))[0]
                    pause = 800 * asked.connections // asked.rate  # the rest of the time is for the answer
                    script.write_text(SCRIPT % (listed, pause))
                    before = processor_seconds(server.pid)
                    rate, half, most, count, fine = load(url, script, asked.connections, asked.seconds)
                    each = 1000 * (processor_seconds(server.pid) - before) / count
                    assert fine, "some requests were refused"
                    figures = f"{rate:,.0f}", half, most, f"{each:.2f}", f"{most_rate:,.0f}"
                    rows.append([f"{run.name}, {kind}", *figures])
                    print(*rows[-1], flush=True)
            with urllib.request.urlopen(f"{url}/health") as answer:
                assert answer.status == 200
            print(f"ready after {start:.0f} s", flush=True)
        finally:
            server.terminate()
            server.wait()
    head = ["run, request", "requests a second", "median", "99th percentile", "CPU ms a request", "most a second"]
    found = table(head, rows)
    print(f"\n{found}")
    if asked.page:
        cores, alone = os.cpu_count(), os.sched_getscheduler(0) != os.SCHED_OTHER
        beside = "; both with real-time priority (`chrt -r 1`), so that other work did not count" if alone else ""
        text = f"""{asked.workers} workers, {asked.connections} connections of wrk, on the same {cores} cores{beside}.
The 99th percentile is that of {asked.seconds} s at about {asked.rate:,} requests a second.

{found}"""
        put("serving", "Serving recommendations", text)


if __name__ == "__main__":
    main()
