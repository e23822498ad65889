"""A browser for tests, and what makes a page hard to read in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 800}
SERIOUS = ("serious", "critical")


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'federec[site]'")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def make_axe() -> Any:
    """axe-core, which looks for what shuts people out."""
    return pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'federec[site]'").Axe()


def unreadable(page: Any, axe: Any, how: str) -> Iterator[str]:
    """What axe-core finds serious or critical, with the first element of each kind."""
    for found in axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]:
        if found["impact"] in SERIOUS:
            first, count = found["nodes"][0], len(found["nodes"])
            what = " ".join(f"{first['html'][:200]}: {first['failureSummary'][:300]}".split())
            yield f"{how}: {found['help']} ({count} times): {what}"
