"""Small runs with titles, a federation's root and its members, and the page's modules in node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.web.console import Console

import federec as fr
from federec.network.certificates import Authority, Identity
from federec.plugins.registry import build

SETTINGS: dict[str, dict[str, Any]] = {
    "pfedrec": {"dim": 8},
    "fedmf": {"dim": 8},
    "fedrecon": {"dim": 8, "passes": 3},
    "fedrap": {"dim": 8, "item_lr": 10.0},
    "fedease": {"l2": [3.0], "recency": [5.0]},
    "ease": {"l2": [3.0]},
}


def write_films(folder: Path, users: int, items: int, each: int) -> tuple[Path, Path]:
    """Files of interactions and of titles, which have letters and signs that a careless page would trip over."""
    draw = np.random.default_rng(5)
    rows = [f"u{user},{item},{at}" for user in range(users) for at, item in enumerate(draw.permutation(items)[:each])]
    ratings, titles = folder / "ratings.csv", folder / "titles.csv"
    ratings.write_text("\n".join(["user,item,timestamp", *rows]), encoding="utf-8")
    names = [f'{item},"Film {item}: Élan <b>& co</b>"' for item in range(items)]
    titles.write_text("\n".join(["item,title", *names]), encoding="utf-8")
    return ratings, titles


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[fr.Run, Path]]:
    """A finished run of a method and its folder, made once for all tests."""
    folder, kept = tmp_path_factory.mktemp("runs"), dict[str, tuple[fr.Run, Path]]()
    ratings, titles = write_films(folder, users=40, items=60, each=12)

    def run(name: str, plugins: tuple[str, ...] = (), **more: Any) -> tuple[fr.Run, Path]:
        key = f"{name} {plugins} {more}"
        if key not in kept:
            data, out = fr.load(ratings, titles=titles), folder / str(len(kept))
            method = build(name, plugins, SETTINGS.get(name, {}))
            kept[key] = fr.train(method, data, rounds=method.most_rounds or 3, out=out, engine="torch", **more), out
        return kept[key]

    return run


MODULES = [
    "bytes",
    "certificates",
    "client",
    "device",
    "messages",
    "policy",
    "ranking",
    "secure_sum",
    "split",
    "start",
    "store",
    "vector",
]


@pytest.fixture(scope="session")
def console() -> Iterator[Console]:
    found = Console(MODULES)
    yield found
    found.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("root") / "ca")


@pytest.fixture(scope="session")
def admit(authority: Authority) -> Callable[..., Identity]:
    """The identity of a node by number."""

    @cache
    def make(number: int, days: int = 365) -> Identity:
        new = Identity.new()
        return new.admitted(authority.admit(new.request(), days=days), authority.pem)

    return make
