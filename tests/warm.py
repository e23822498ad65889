"""Commands of the documentation, run by a process that has imported federec already: each in a fork of it.

`python tests/warm.py FOLDER` writes `federec`, `python`, `torchrun` and `pip` into FOLDER, which a shell then has first
on its PATH, and serves them until its input ends. Importing takes three seconds, a fork takes none.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import select
import signal
import socket
import sys
import tomllib
import traceback
from dataclasses import replace
from pathlib import Path

os.environ["POLARS_ALLOW_FORKING_THREAD"] = "1"  # its threads begin when it is first used, which is in the forks

import numpy as np
import polars  # noqa: F401  so that no command needs to import it
import torch

from federec.cli.main import run
from federec.data import tastes
from federec.data.interactions import Interactions
from federec.data.sets import SETS, NamedSet
from federec.reporting import comparison, report  # noqa: F401
from federec.runtimes import local  # noqa: F401

MOST = {"--rounds": 2, "--trials": 2}
"""Options of a command that are cut to this, so that pages run in seconds."""

COMMAND = """\
#!{python} -IS
import json, os, signal, socket, sys
place = socket.socket(socket.AF_UNIX)
place.connect({place!r})
asked = {{"words": [{name!r}, *sys.argv[1:]], "cwd": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(place, [json.dumps(asked).encode()], [0, 1, 2])
place.shutdown(socket.SHUT_WR)
answers = place.makefile()
process = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(process, number))
sys.exit(int(answers.readline() or 70))
"""


def ratings() -> str:
    """A file of 50 users and 80 items, also with a column that says which part of a split a row is in."""
    random, rows = np.random.default_rng(0), ["user,item,rating,timestamp,part"]
    parts = ["train"] * 13 + ["valid", "test"]
    for user in range(50):
        items = zip(random.permutation(80), parts, strict=False)
        rows += [f"{user},{item},{1 + item % 5},{when},{part}" for when, (item, part) in enumerate(items)]
    return "\n".join(rows)


def small_tastes() -> Interactions:
    """The built-in data with fewer users; the same items and ids."""
    data = tastes.generate()
    chosen = np.flatnonzero(data.user_ids <= 60)
    rows = np.isin(data.users, chosen)
    cut = {name: getattr(data, name)[rows] for name in ("items", "times", "ratings")}
    users = np.searchsorted(chosen, data.users[rows]).astype(np.int32)
    return replace(data, **cut, users=users, user_ids=data.user_ids[chosen], source_rows=len(users))


def small_sets() -> dict[str, NamedSet]:
    """The named sets, as small as `ratings`."""
    small = {"rows": 750, "users": 50, "items": 80, "min_interactions": 0}
    return {name: known if known.built_in else replace(known, **small) for name, known in SETS.items()}


def fewer(words: list[str]) -> list[str]:
    """The arguments of `federec` with fewer rounds and trials."""
    words = [word for each in words for word in (each.split("=", 1) if each.split("=")[0] in MOST else [each])]
    for place, word in enumerate(words[:-1]):
        if word in MOST and words[place + 1].isdigit():
            words[place + 1] = str(min(MOST[word], int(words[place + 1])))
    trains = words[:1] in (["train"], ["tune"]) or words[:2] in (["federation", "up"], ["federation", "prepare"])
    if trains and not {"--rounds", "--resume", "--config", "--help"} & {*words}:
        words += ["--rounds", str(MOST["--rounds"])]
    return words


def federec(words: list[str]) -> None:
    sys.argv = ["federec", *fewer(words)]
    run()


def python(words: list[str]) -> None:
    if words[:2] == ["-m", "federec"]:
        federec(words[2:])
    elif words[0].endswith(".py"):
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
    else:
        os.execv(sys.executable, [sys.executable, *words])


def torchrun(words: list[str]) -> None:
    """Start the processes as torchrun does, on one machine."""
    count = int(words[words.index("--nproc-per-node") + 1])
    script = next(place for place, word in enumerate(words) if word == "-m" or word.endswith(".py"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    others = []
    for rank in range(1, count):
        others.append(os.fork())
        if not others[-1]:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os._exit(_exit_code(python, words[script:]))
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
    code = _exit_code(python, words[script:])
    codes = [code, *(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) for other in others)]
    sys.exit(next(filter(None, codes), 0))


def pip(words: list[str]) -> None:
    """Install nothing; the extras of federec that are named must exist."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = ",".join(re.findall(r"(?:federec|\.)\[([\w,]+)\]", " ".join(words)))
    unknown = {*extras.split(",")} - {"", *project["optional-dependencies"]}
    if unknown:
        sys.exit(f"federec has no extra {', '.join(sorted(unknown))}")


COMMANDS = {"federec": federec, "python": python, "torchrun": torchrun, "pip": pip}


def _exit_code(command, words: list[str]) -> int:
    """Run it; what it ends with."""
    try:
        command(words)
        code: object = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _answer(place: socket.socket) -> None:
    """Run what was asked, in this process, and end it."""
    message, files, _, _ = socket.recv_fds(place, 1 << 20, 3)
    while part := place.recv(1 << 20):
        message += part
    asked = json.loads(message)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    place.sendall(f"{os.getpid()}\n".encode())
    name, *words = asked["words"]
    code = _exit_code(COMMANDS[name], words)
    place.sendall(f"{code}\n".encode())
    os._exit(code)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    small = small_tastes()
    tastes.generate = lambda: small
    SETS.update(small_sets())
    place = socket.socket(socket.AF_UNIX)
    place.bind(str(folder / "place"))
    place.listen(16)
    for name in COMMANDS:
        (folder / name).write_text(COMMAND.format(python=sys.executable, place=str(folder / "place"), name=name))
        (folder / name).chmod(0o755)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    print("ready", flush=True)
    while place in select.select([place, sys.stdin], [], [])[0]:
        asking, _ = place.accept()
        if not os.fork():
            place.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(asking)
        asking.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
