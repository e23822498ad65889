"""What every test of the Flower runtime needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    """A server's port in this process."""
    from tests.runtimes.flower.fleet import Fleet

    fleet = Fleet(tmp_path)
    yield fleet
    fleet.stop()
