"""What holds for whole runs of every method: repeated, stopped and resumed, under both protocols, kept in files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml

from federec.checks.comparing import close, must
from federec.data.interactions import Interactions
from federec.data.split import Split
from federec.data.tastes import generate
from federec.evaluation.protocols import protocol
from federec.methods.base import Method
from federec.methods.central import CentralMethod
from federec.runs.folder import Line
from federec.runtimes.local import resume, train
from federec.runtimes.simulation import trainer

CHANCE = 0.1
"""HR@10 of a random order of one item and 99 others."""


class _Stopped(Exception):
    """A run was stopped on purpose."""


def settings_survive(method: Method) -> str:
    """Settings come back from YAML and JSON as they were, which is how run folders keep them."""
    plain = method.model_dump(mode="json")
    for kind, text in (("YAML", yaml.safe_dump(plain)), ("JSON", json.dumps(plain, allow_nan=False))):
        again = type(method).model_validate(yaml.safe_load(text))
        must(again == method, f"settings change on their way through {kind}: {again!r} instead of {method!r}")
    return ", ".join(f"{key}={value}" for key, value in plain.items()) or "no settings"


def reviews_repeat(method: Method, split: Split, rules: str, participation: float = 1.0) -> str:
    """Rounds under a protocol; the best round can be looked at again, and is the same to the last digit."""
    worker, history = trainer(method, split, protocol(rules), 1, participation), []
    for round_ in (1, 2):
        played = worker.play(round_)
        history.append((round_, played.model.copy(), played))
    for round_, model, played in reversed(history):
        review = worker.review(model, round_)
        for seen, recorded in ((review.valid, played.valid), (review.test, played.test)):
            for kind, metrics in recorded.items():
                must(seen[kind] == metrics, f"round {round_} is {seen[kind]} when it is played again, it was {metrics}")
    return f"2 rounds, {participation:.0%} of the devices: every metric the same when a round is played again"


def scores_are_each_users_own(method: CentralMethod, split: Split, tolerance: float = 1e-4) -> str:
    """A user's scores do not depend on who is asked for at the same time, and learning gives the same model twice."""
    workers = [trainer(method, split, protocol("clean"), 1) for _ in range(2)]
    models = [worker.play(1).model for worker in workers]
    for name, value in models[0].shared.items():
        must(torch.equal(value, models[1].shared[name]), f"'{name}' differs when the same round is played again")
    users = torch.arange(split.data.n_users)
    together = method.scores(models[0].shared, split, users)
    must(together.shape == (len(users), split.data.n_items), f"`scores` gives {[*together.shape]}, not [users, items]")
    apart = torch.cat([method.scores(models[0].shared, split, one) for one in users.split(1)])
    return f"{len(users)} users: differences up to {close(together, apart, 'scores', tolerance):.1g}"


def resumed(
    method: Method, data: Interactions, folder: Path, rounds: int = 3, participation: float = 1.0, engine: str = "torch"
) -> str:
    """A run that is stopped after every round and resumed ends as one that never stopped, to the last bit."""
    given: dict[str, Any] = {"rounds": rounds, "participation": participation, "engine": engine, "seed": 3}
    whole, parts = folder / "whole", folder / "parts"
    played = len(train(method, data, **given, out=whole).history)
    with suppress(_Stopped):
        train(method, data, **given, out=parts, on_round=_stop)
    for _ in range(played):
        try:
            resume(parts, data, on_round=_stop, method=method)
        except _Stopped:
            must(not (parts / "result.json").exists(), "a run that was stopped says that it is finished")
    for name, one, other in zip(("rounds", "result", "model", "files"), outcome(parts), outcome(whole), strict=True):
        must(one == other, f"{name} of the resumed run differ: {_difference(one, other)}")
    return f"{played} rounds, stopped after each: the same to the last bit"


def _stop(line: Line, rounds: int) -> NoReturn:
    raise _Stopped


def outcome(path: Path) -> tuple[Any, ...]:
    """All of a run folder that must be the same, however often the run was stopped."""
    lines = [_strict(line) for line in (path / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    result = _strict((path / "result.json").read_text(encoding="utf-8"))
    for record in (*lines, result):
        del record["seconds"]
    del result["peak_rss_mb"]
    files = {file.name: file.read_bytes() for file in (path / "model").iterdir()}
    return lines, result, files, sorted(file.name for file in path.iterdir())


def _strict(text: str) -> dict[str, Any]:
    def refuse(word: str) -> NoReturn:
        must(False, f"{word} is not JSON")
        raise AssertionError

    record: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return record


def _difference(one: Any, other: Any) -> str:
    """Where two records differ, briefly."""
    if isinstance(one, dict) and isinstance(other, dict):
        return ", ".join(sorted(str(key) for key in {*one, *other} if one.get(key) != other.get(key)))
    return f"{one!r:.80} and {other!r:.80}"


def learns(method: Method, rounds: int = 20) -> str:
    """How well it ranks small generated data after some rounds."""
    run = train(method, generate(users=120, items=200, interactions=4000), rounds=rounds, engine="torch")
    value, best = run.valid["sampled"]["hr@10"], run.result["best_round"]
    verdict = "above" if value > 1.5 * CHANCE else "no better than"
    return f"validation HR@10 {value:.2f} in round {best} of {len(run.history)}: {verdict} chance ({CHANCE:.2f})"
