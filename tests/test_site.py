"""Every page of the built site, and reports, in a browser: nothing fails, leaves the machine, or is hard to read."""

import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import PurePosixPath

import pytest
from tests.browsing import DESKTOP, PHONE, chromium, make_axe, unreadable
from tests.pages import PAGES, ROOT

import federec as fr
from federec.cli.main import app

pytestmark = pytest.mark.slow
REPORTS = [f"runs/{name}" for name in ("fedmf/report.html", "pfedrec/report.html", "compare.html")]


def built(page):
    """The file that mkdocs makes of a page of docs/."""
    path = PurePosixPath(page).relative_to("docs")
    return str(path.with_suffix(".html") if path.stem == "index" else path.with_suffix("") / "index.html")


PATHS = [*(built(page) for page in PAGES if page.startswith("docs/")), "404.html", *REPORTS]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The built site, with the reports of two runs and their comparison beside it."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    *reports, comparison = [site / report for report in REPORTS]
    runs = [report.parent for report in reports]
    for run in runs:
        fr.train(run.name, "tastes", rounds=3, out=run)
    app(["report", *map(str, runs), "-o", str(comparison)], standalone_mode=False)
    return site


@pytest.fixture(scope="module")
def address(folder):
    """Where the site is served."""
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def axe():
    return make_axe()


def test_there_are_no_other_pages(folder):
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.html")} == {*PATHS}


@pytest.mark.parametrize("path", PATHS)
def test_a_page_can_be_read(path, address, browser, axe):
    problems: list[str] = []
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    context.set_default_timeout(120_000)  # a page is not at fault where the machine is busy
    context.route(lambda url: not url.startswith(address), lambda route: route.abort())
    page = context.new_page()
    page.on("console", lambda said: problems.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(f"script: {error}"))
    page.on("request", lambda asked: problems.append(f"asks for {asked.url}") if outside(asked.url, address) else None)
    page.goto(f"{address}/{path}")
    problems += unreadable(page, axe, "desktop, light")
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("['slate', undefined].includes(document.body.dataset.mdColorScheme)")
    problems += unreadable(page, axe, "phone, dark")
    wide = page.evaluate("document.documentElement.scrollWidth")
    if wide > PHONE["width"]:
        problems.append(f"{wide} px wide on a screen of {PHONE['width']} px")
    context.close()
    assert not problems, "\n".join([path, *problems])


def outside(url, address):
    return not url.startswith((address, "data:"))
