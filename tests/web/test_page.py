"""The page in a real browser: what a person does with it, and what leaves it."""

import json
import threading
import time

import pytest
from tests.browsing import DESKTOP, chromium, make_axe, unreadable
from tests.web.conftest import write_films

import federec as fr
from federec.network.messages import Reply
from federec.web.folder import page_files
from federec.web.server import page_server

pytestmark = pytest.mark.slow
READY = "html[data-ready]"
PHONE = {"width": 390, "height": 844}
ITEMS = 4000
PAINT_MS, STEP_MS = 1000, 20


class Site:
    """A served page, and every request that reached its server."""

    def __init__(self, files):
        self.files, self.requests = files, []
        self.server = page_server(files, "127.0.0.1", 0, lambda *asked: self.requests.append(asked))
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def report(request):
    """Measured figures, printed when all is done."""
    figures = {}
    yield figures
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("", *(f"{name}: {value}" for name, value in figures.items()), sep="\n")


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def axe():
    return make_axe()


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """The page's files of a run with 4,000 items, whose touched rows learn in the page."""
    folder = tmp_path_factory.mktemp("films")
    ratings, titles = write_films(folder, users=800, items=ITEMS, each=40)
    run = fr.train("pfedrec", fr.load(ratings, titles=titles), rounds=20, out=folder / "run")
    assert run.data.n_items == ITEMS
    return page_files(folder / "run")


@pytest.fixture
def site(films):
    site = Site(films)
    yield site
    site.stop()


@pytest.fixture
def context(browser):
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    context.set_default_timeout(60_000)  # a page is not at fault where the machine is busy
    context.problems = []
    yield context
    context.close()
    assert context.problems == []


def opened(context, address):
    """A tab with the page in it, ready for use."""
    page, problems = context.new_page(), context.problems
    page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    context.on("request", lambda asked: problems.append(asked.url) if not asked.url.startswith(address) else None)
    page.goto(address)
    page.wait_for_selector(READY)
    return page


def pick(page, count, known=0):
    """Search for titles and pick the first of each, after `known` others; returns the picked titles."""
    titles = []
    for number in range(known, known + count):
        page.fill("#query", f"film {number * 311}: elan")
        chip = page.locator("#results button").first
        titles.append(chip.inner_text())
        chip.click()
        page.wait_for_function("count => document.querySelectorAll('#picks li').length === count", arg=number + 1)
    settled(page)
    return titles


def settled(page):
    """Wait until the recommendations are those of the picks."""
    page.wait_for_function(
        """() => {
          const picks = document.querySelectorAll('#picks li').length;
          return picks && document.querySelector('#status').textContent.includes(` from ${picks} pick`);
        }"""
    )


def listed(page):
    return page.locator("#recommendations .title").all_inner_texts()


def offline_ready(page):
    page.wait_for_function("() => document.querySelector('#offline').textContent.includes('works offline')")


def kept(page):
    """What the browser keeps for the page: names of databases and of caches."""
    return page.evaluate("async () => [(await indexedDB.databases()).map(d => d.name), await caches.keys()]")


def test_five_picks_give_ten_recommendations_and_a_reload_keeps_them(context, site):
    page = opened(context, site.address)
    assert page.locator("#recommendations li").count() == 0
    picked = pick(page, 5)
    found = listed(page)
    assert len({*picked}) == 5 and len({*found}) == 10 and not {*picked} & {*found}
    page.reload()
    page.wait_for_selector(READY)
    settled(page)
    assert listed(page) == found and page.locator("#picks li").count() == 5
    page.locator("#recommendations button").first.click()  # what is liked moves to the picks
    settled(page)
    assert found[0] not in listed(page) and page.locator("#picks li").count() == 6
    for left in range(5, -1, -1):
        page.locator("#picks button").last.click()
        page.wait_for_function("count => document.querySelectorAll('#picks li').length === count", arg=left)
    assert listed(page) == []


def test_nothing_leaves_but_requests_for_the_pages_own_files(context, browser, site):
    """The attack: read all that the server was asked for. Whoever picks, imports, exports and looks at the message asks
    for the same files as one who only opens the page."""
    opened_only, other = Site(site.files), browser.new_context()
    other.problems = context.problems
    offline_ready(opened(other, opened_only.address))
    other.close()
    opened_only.stop()
    page = opened(context, site.address)
    offline_ready(page)
    pick(page, 3)
    page.click("#explain")
    page.wait_for_selector(".step.leaves")
    with page.expect_download():
        page.click("#export")
    page.reload()
    page.wait_for_selector(READY)
    allowed = {("GET", "/")} | {("GET", f"/{name}") for name in site.files}
    assert {*site.requests} == {*opened_only.requests} <= allowed
    assert context.cookies() == []


def test_erasing_erases(context, site):
    page = opened(context, site.address)
    offline_ready(page)
    pick(page, 3)
    databases, caches = kept(page)
    assert databases == ["federec /"] and len(caches) == 1
    page.click("#erase")
    page.click("#no")
    assert page.locator("#picks li").count() == 3
    page.click("#erase")
    page.click("#yes")
    page.wait_for_function("() => document.querySelector('#data-status').textContent.startsWith('Erased')")
    assert kept(page) == [[], []]
    assert page.evaluate("() => navigator.serviceWorker.getRegistrations().then(all => all.length)") == 0
    assert page.locator("#picks li").count() == 0 and listed(page) == []
    page.reload()
    page.wait_for_selector(READY)
    assert page.locator("#picks li").count() == 0


def test_it_works_offline_after_the_first_load(context, site):
    page = opened(context, site.address)
    picked = pick(page, 2)
    offline_ready(page)
    site.stop()
    context.set_offline(True)
    page.reload()
    page.wait_for_selector(READY)
    settled(page)
    picked += pick(page, 3, known=2)
    assert [text.rpartition(" ")[0] for text in page.locator("#picks button").all_inner_texts()] == picked
    assert len(listed(page)) == 10 and not {*picked} & {*listed(page)}


def test_data_can_be_taken_to_another_browser(context, browser, site, tmp_path):
    page = opened(context, site.address)
    pick(page, 5)
    found = listed(page)
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "picks.json")
    other = browser.new_context(viewport=PHONE)
    other.problems = context.problems
    second = opened(other, site.address)
    for broken, said in (("{", "not JSON"), ('{"format": "other"}', "holds no picks")):
        (tmp_path / "broken.json").write_text(broken)
        second.set_input_files("#file", tmp_path / "broken.json")
        second.wait_for_function(f"() => document.querySelector('#data-status').textContent.includes('{said}')")
    assert second.locator("#picks li").count() == 0
    second.set_input_files("#file", tmp_path / "picks.json")
    settled(second)
    assert listed(second) == found  # the same device: the same picks, the same random numbers
    other.close()


def test_the_message_is_shown_as_bytes(context, site, tmp_path):
    page = opened(context, site.address)
    assert page.is_disabled("#explain")
    picked = pick(page, 4)
    page.click("#explain")
    page.wait_for_selector(".step.leaves")
    assert page.locator(".step h3").all_inner_texts() == [
        "Before any stage",
        "Secure sum: whole numbers",
        "Secure sum: what leaves",
    ]
    marked = page.locator("tr.picked th").all_inner_texts()
    assert {*marked} == {*picked}
    with page.expect_download() as download:
        page.click(".step.leaves button")
    download.value.save_as(tmp_path / "message.bin")
    content = (tmp_path / "message.bin").read_bytes()
    assert len(Reply.parse(content).sealed) > 4 * ITEMS * 32
    shown = page.locator(".step.leaves pre").inner_text()
    assert shown.splitlines()[0][8:55] == content[:16].hex(" ")


def test_titles_are_text_and_never_markup(context, site):
    page = opened(context, site.address)
    pick(page, 1)
    page.fill("#query", "<b>")
    assert page.locator("#results button").first.inner_text().endswith("<b>& co</b>")
    assert page.locator("main b").count() == 0


def test_the_keyboard_is_enough(context, site):
    page = opened(context, site.address)
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to search"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "query"
    page.keyboard.type("film 3110: elan")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    settled(page)
    assert page.evaluate("() => document.activeElement.getAttribute('aria-pressed')") == "true"  # the focus stays
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # takes the pick back
    page.wait_for_function("() => document.querySelectorAll('#picks li').length === 0")
    assert page.evaluate("() => document.activeElement.id") == "picks-title"


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_people_can_read_and_touch_it(context, site, axe, size, scheme, tmp_path, report):
    page = opened(context, site.address)
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    problems = [*unreadable(page, axe, "empty")]
    pick(page, 5)
    page.click("#explain")
    page.wait_for_selector(".step.leaves")
    problems += unreadable(page, axe, "full")
    page.click("#erase")
    problems += unreadable(page, axe, "dialog")
    page.click("#no")
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, input:not([hidden])')].filter(e => e.checkVisibility())
          .map(e => [e.textContent, e.getBoundingClientRect()]).filter(([, box]) => box.height < 44 || box.width < 44)
          .map(([text]) => text)"""
    )
    assert (problems, small) == ([], []) and wide <= size["width"]
    page.click("#explain")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    report[f"screenshot, {size['width']} px"] = tmp_path / "page.png"


def test_it_is_quick(browser, site, report):
    paints, steps, loads = [], [], []
    for _ in range(3):
        context = browser.new_context(viewport=DESKTOP)
        context.problems = []
        begun = time.perf_counter()
        page = opened(context, site.address)
        loads.append(1000 * (time.perf_counter() - begun))
        pick(page, 5)
        paints.append(page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        for code in range(20, 40):  # more picks, as a regular visitor has
            page.fill("#query", f"film {code * 97}: elan")
            page.locator("#results button").first.click()
        settled(page)
        told = page.evaluate("() => ({ ...document.querySelector('#status').dataset })")
        steps.append(float(told["milliseconds"]) / int(told["rounds"]))
        context.close()
    size = sum(map(len, site.files.values())) / 1e6
    report["first contentful paint, ms"] = [round(paint) for paint in paints]
    report["ready to search, ms"] = [round(load) for load in loads]
    report[f"a local round of 25 picks among {ITEMS:,} items, ms"] = [round(step, 2) for step in steps]
    report["all files, MB"] = round(size, 2)
    assert min(paints) < PAINT_MS and min(steps) < STEP_MS


def test_an_item_item_page_of_the_default_method(context, tmp_path):
    """What a stranger gets who names no method: `federec train --data tastes`, then `federec web`."""
    run = fr.train(data="tastes", out=tmp_path / "run")
    assert run.method.name == "fedease"
    site = Site(page_files(tmp_path / "run"))
    page = opened(context, site.address)
    for _ in range(5):
        page.locator("#results button[aria-pressed=false]").first.click()
    settled(page)
    assert len({*listed(page)}) == 10
    page.click("#explain")
    page.wait_for_selector(".step.leaves")
    assert json.loads(site.files["page.json"])["kind"] == "neighbours"
    site.stop()
