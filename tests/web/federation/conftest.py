"""A federation's root, its members, and the page's modules in node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from tests.web.federation.console import Console

from federec.network.certificates import Authority, Identity

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
