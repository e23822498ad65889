"""Tabs of a real browser in a federation of Python devices, over the gateway of a real server."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from tests.browsing import DESKTOP, chromium, make_axe, unreadable
from tests.network.compare import assert_same, shared_after
from tests.network.federated import federated
from tests.web.federation import devices

import federec as fr
from federec.cli.main import app
from federec.network.certificates import Authority
from federec.network.device_folder import shares
from federec.network.events import Events
from federec.network.messages import Reply
from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link
from federec.runtimes.flower.up import free_port
from federec.runtimes.in_process import federation
from federec.runtimes.ports import answering, listening
from federec.web.gateway.app import Gateway
from federec.web.gateway.invitations import invitation
from federec.web.gateway.server import described, files_of

pytestmark = pytest.mark.slow
READY = "html[data-ready]"
PHONE = {"width": 390, "height": 844}
SECONDS = 240
NODES, TABS, ITEMS = 10, (2, 7), 60
SMALL = {"dim": 8, "item_lr_factor": 0.5, "batch": 32}


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Ten users, and items whose labels cannot occur in a message by chance."""
    draw, file = np.random.default_rng(5), tmp_path_factory.mktemp("data") / "ratings.csv"
    rows = [
        f"u{user},secret-film-{item:03d},{at}"
        for user in range(NODES)
        for at, item in enumerate(draw.permutation(ITEMS)[: 8 + user])
    ]
    file.write_text("\n".join(["user,item,timestamp", *rows]))
    return fr.load(file)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """An earlier run on the same items, whose page the browsers get."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    fr.train("pfedrec", data, rounds=2, out=folder)
    return folder


def made(path, data):
    how = {"settings": SMALL, "channel": ("secure-sum:most=64",), "minimum": 7, "rounds": 3}
    return federated(path, data, "pfedrec", nodes=NODES, deadline=60.0, grace=10.0, patience=120.0, **how)


class Served:
    """A server with its gateway, and the devices that are not tabs, in processes of their own."""

    def __init__(self, run, page):
        self.run, self.log = run, run / "log.txt"
        port, gateway = free_port(), free_port()
        self.address = f"http://127.0.0.1:{gateway}/"
        serve = ["federation", "serve", str(run), "--certificates", str(run / "tls"), "--insecure"]
        where = ["--host", "127.0.0.1", "--port", str(port), "--gateway", f"127.0.0.1:{gateway}", "--page", str(page)]
        self.processes = []
        self.start("-m", "federec", *serve, *where)
        there = [f"{path}={key}" for number, (path, key) in enumerate(shares(run)) if number not in TABS]
        self.start(devices.__file__, f"127.0.0.1:{port}", *there)

    def start(self, *command):
        with self.log.open("ab") as log:
            self.processes.append(subprocess.Popen([sys.executable, *command], stdout=log, stderr=log))

    def wait(self):
        """Until the server has finished its run."""
        assert self.processes[0].wait(SECONDS) == 0, self.log.read_text()

    def listening(self):
        limit = time.monotonic() + 60
        while "browsers join at" not in self.log.read_text() and time.monotonic() < limit:
            assert self.processes[0].poll() is None, self.log.read_text()
            time.sleep(0.1)

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.wait()


def invited(run, count):
    """Links for so many people, made by the command."""
    out, root = run / "invitations", run / "tls"
    page = "http://127.0.0.1:1/"
    command = ["federation", "invite", str(out), "--root", str(root), "--page", page, "--count", str(count)]
    app([*command, "--run", str(run)], standalone_mode=False)
    return [path.read_text().strip().removeprefix(page) for path in sorted(out.glob("*.link"))]


def picks_of(data, user):
    """A file as the page exports it: the user's items, oldest first, and the number that the user has in the data."""
    own = data.users == user
    items = data.items[own][np.argsort(data.times[own])]
    picks = [{"item": str(data.item_ids[item])} for item in items]
    return json.dumps({"format": "federec-picks", "version": 1, "number": str(user), "picks": picks}).encode()


class Tab:
    """A browser of its own with the page in it, and every request that it made."""

    def __init__(self, browser, address):
        self.context = browser.new_context(viewport=DESKTOP, reduced_motion="reduce")
        self.context.set_default_timeout(60_000)
        self.page, self.requests, self.problems = self.context.new_page(), [], []
        self.context.on("request", lambda asked: self.requests.append(asked))
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(address)
        self.page.wait_for_selector(READY)

    def give(self, picks):
        self.page.set_input_files("#file", {"name": "picks.json", "mimeType": "application/json", "buffer": picks})
        self.page.wait_for_function("() => document.querySelector('#data-status').textContent.includes('of the file')")

    def join(self, cohort=7):
        self.page.wait_for_selector("#join:visible")
        self.page.fill("#cohort", str(cohort))
        self.page.click("#join")
        self.page.wait_for_selector("#part:visible")

    def text(self, name):
        return self.page.locator(f"#{name}").inner_text()


@pytest.fixture
def tabs(browser):
    found = []

    def opened(address):
        found.append(Tab(browser, address))
        return found[-1]

    yield opened
    for tab in found:
        tab.context.close()


def test_two_tabs_and_eight_python_devices_learn_what_ten_python_devices_learn(tabs, data, trained, tmp_path):
    mixed, reference = made(tmp_path / "tabs", data), made(tmp_path / "python", data)
    for number in TABS:
        (mixed.run / "nodes" / f"device-{number}.crt").unlink()
    links = invited(mixed.run, len(TABS))
    served = Served(mixed.run, trained)
    try:
        served.listening()
        people = [tabs(served.address + link) for link in links]
        for tab, user in zip(people, TABS, strict=True):
            assert "#" not in tab.page.url  # the invitation is not left in the address
            tab.give(picks_of(data, user))
            tab.join()
        served.wait()
        told = [(tab.text("rounds"), tab.text("bytes")) for tab in people]
    finally:
        served.stop()
    assert [rounds for rounds, _ in told] == ["3", "3"], served.log.read_text()
    assert mixed.events("rejected") == [] == mixed.events("missing"), served.log.read_text()
    federation(reference.run)
    assert_same(mixed.run, reference.run)
    one, two = (shared_after(each.run)["shared:items"] for each in (mixed, reference))
    assert float((one - two).abs().max()) <= 6 * 2 * 64 / 2**24 + 1e-5 * float(two.abs().max())

    # What left the tabs
    labels = [str(label).encode() for label in data.item_ids]
    for tab, link, (_, shown) in zip(people, links, told, strict=True):
        assert all(asked.url.startswith(served.address) for asked in tab.requests)
        asked = [(each.url, each.headers, each.post_data_buffer or b"") for each in [*tab.requests]]
        whole = repr(asked).encode() + b"".join(body for *_, body in asked)
        assert not any(label in whole for label in labels)
        assert link.removeprefix("#join=").encode()[40:80] not in whole  # nor the key
        bodies = [body for url, _, body in asked if url.endswith("gateway/reply")]
        replies = [Reply.parse(body) for body in bodies]
        assert len(replies) >= 3 * 3
        for reply in replies:  # nothing but what belongs to a secure sum
            assert (reply.failed, reply.sums, reply.update.rows, reply.update.layers) == ("", {}, {}, {})
            assert not len(reply.wanted) and not len(reply.update.ids)
        largest = max(replies, key=lambda reply: len(reply.sealed)).sealed
        words = np.frombuffer(largest[33:], "<u4")
        assert len(words) > ITEMS * SMALL["dim"]
        assert abs(words.mean() / 2**32 - 0.5) < 0.06  # masked: uniform, whatever was learned
        sizes = [len(body) for body in bodies]
        assert int(shown.replace(",", "")) in (sum(sizes), sum(sizes[:-1]))  # the server may end before it answers


class Alone:
    """A gateway in this process whose federation never begins."""

    def __init__(self, run, trained, change=lambda told: None):
        root = (run / "tls" / "ca.crt").read_bytes()
        told = json.loads(described(run, root))
        change(told)
        self.link = Link()
        self.admission = Admission(self.link, run / "nodes", root, Events(run / "audit.jsonl"))
        files = files_of(run, trained)
        app = Gateway(self.link, self.admission, json.dumps(told).encode(), files, 1 << 20)
        listener = listening("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        self.server = answering(app, listener, ())


@pytest.fixture
def alone(data, trained, tmp_path):
    opened = []

    def make(change=lambda told: None):
        opened.append(Alone(made(tmp_path / "run", data).run, trained, change))
        return opened[-1]

    yield make
    for each in opened:
        each.server.should_exit = each.server.force_exit = True


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"channel": []}, "only takes part in secure sums"),
        ({"method": "fedncf"}, "a page learns pfedrec or fedmf"),
        ({"plugins": ["ldp"]}, "without plug-ins"),
    ],
)
def test_a_page_says_why_it_does_not_join(tabs, alone, change, why):
    tab = tabs(alone(lambda told: told["config"].update(change)).address)
    tab.page.wait_for_function("() => document.querySelector('#federation-about').textContent")
    assert why in tab.text("federation-about")
    assert not tab.page.is_visible("#join")
    assert not [asked.url for asked in tab.requests if asked.method == "POST"]


def test_a_browser_without_x25519_says_so(browser, alone):
    without = """const known = crypto.subtle.importKey.bind(crypto.subtle);
    const refuse = () => Promise.reject(new Error("not known"));
    crypto.subtle.importKey = (...given) => (given[2] === "X25519" ? refuse() : known(...given));"""
    context = browser.new_context()
    context.add_init_script(without)
    page = context.new_page()
    page.goto(alone().address)
    page.wait_for_function("() => document.querySelector('#federation-about').textContent.includes('X25519')")
    assert not page.is_visible("#join")
    context.close()


def test_invitations_are_checked_before_anything_is_sent(tabs, alone, tmp_path):
    here = alone()
    tab = tabs(here.address)
    other, _ = invitation(Authority.create(tmp_path / "elsewhere"), 9)
    over, _ = invitation(Authority.read(tmp_path / "run" / "tls"), 0)
    good, _ = invitation(Authority.read(tmp_path / "run" / "tls"), 9)
    damaged = good[:60] + ("A" if good[60] != "A" else "B") + good[61:]
    tab.page.wait_for_selector("#join:visible")
    for code, why in (
        ("", "not an invitation"),
        ("hello", "not an invitation"),
        (other, "for another federation"),
        (over, "has expired"),
        (damaged, "damaged"),
    ):
        tab.page.fill("#invitation", code)
        tab.page.click("#join")
        tab.page.wait_for_function(
            "why => document.querySelector('#federation-status').textContent.includes(why)", arg=why
        )
    assert not [asked.url for asked in tab.requests if asked.method == "POST"]


def test_a_person_joins_leaves_comes_back_and_erases(tabs, alone, tmp_path):
    here = alone()
    (link,) = invited(tmp_path / "run", 1)
    tab = tabs(here.address + link)
    tab.join()
    connected = "() => document.querySelector('#federation-status').textContent.startsWith('Connected')"
    tab.page.wait_for_function(connected)
    assert len(here.link.get_nodes(here.link.run)) == 1
    other = tab.context.new_page()  # a second tab of the same browser does not take the first one's orders
    other.goto(here.address)
    other.wait_for_function("() => document.querySelector('#federation-status').textContent.includes('Another tab')")
    other.close()
    tab.page.reload()
    tab.page.wait_for_selector(READY)
    tab.page.wait_for_function(connected)  # it takes part without being asked again
    read = """async () => {
      const found = (await indexedDB.databases()).map(({name}) => name).filter((name) => name.endsWith("federation"));
      if (!found.length) return null;
      const outcome = (asked) => new Promise((done) => (asked.onsuccess = () => done(asked.result)));
      const opened = await outcome(indexedDB.open(found[0]));
      const state = await outcome(opened.transaction("values").objectStore("values").get("device"));
      opened.close();
      return state && {extractable: state.identity.key.extractable, slot: String(state.slot)};
    }"""
    assert tab.page.evaluate(read)["extractable"] is False
    tab.page.click("#leave")
    tab.page.wait_for_selector("#join:visible")
    assert tab.page.evaluate(read) is None
    assert not here.link.get_nodes(here.link.run)
    tab.page.fill("#invitation", link)
    tab.join()
    tab.page.wait_for_function(connected)
    tab.page.click("#erase")
    tab.page.click("#yes")
    tab.page.wait_for_function("() => document.querySelector('#data-status').textContent.startsWith('Erased')")
    assert tab.page.evaluate("async () => (await indexedDB.databases()).length") == 0
    assert not here.link.get_nodes(here.link.run)


LEDGER = """async (rounds) => {
  const name = (await indexedDB.databases()).map(({name}) => name).find((name) => name.endsWith("federation"));
  if (!name) return null;
  const outcome = (asked) => new Promise((done) => (asked.onsuccess = () => done(asked.result)));
  const opened = await outcome(indexedDB.open(name));
  const values = opened.transaction("values", "readwrite").objectStore("values");
  const state = await outcome(values.get("device"));
  if (rounds) {
    state.ledger.spent.rounds = rounds;
    await outcome(values.put(state, "device"));
  }
  opened.close();
  return state.ledger.spent.rounds;
}"""


def test_joining_in_a_second_tab_does_not_forget_what_the_first_has_answered(tabs, alone, tmp_path):
    here = alone()
    first, second = invited(tmp_path / "run", 2)
    tab = tabs(here.address + first)
    other = tab.context.new_page()
    other.goto(here.address + second)
    other.wait_for_selector("#join:visible")  # both forms are open
    tab.join()
    assert tab.page.evaluate(LEDGER, 3) == 3
    other.click("#join")
    other.wait_for_function("() => document.querySelector('#federation-status').textContent.includes('Another tab')")
    assert not other.is_visible("#join")
    assert other.evaluate(LEDGER, 0) == 3
    tab.page.close()  # and when nobody has the lock, the other tab goes on with what there is
    other.goto(here.address + second)  # the page stays as it is
    other.wait_for_function("() => !location.hash")
    other.goto("about:blank")
    other.goto(here.address + second)
    other.wait_for_selector("#leave:visible")
    assert "#" not in other.url  # although the invitation is not needed
    assert other.evaluate(LEDGER, 0) == 3


def test_erasing_in_one_tab_ends_what_another_does(tabs, alone, data, tmp_path):
    here = alone()
    (link,) = invited(tmp_path / "run", 1)
    tab = tabs(here.address + link)
    tab.give(picks_of(data, 2))
    tab.join()
    tab.page.wait_for_function("() => document.querySelector('#federation-status').textContent.startsWith('Connected')")
    other = tab.context.new_page()
    other.goto(here.address)
    other.wait_for_selector(READY)
    other.wait_for_selector("#part:visible")
    other.click("#erase")
    other.click("#yes")
    other.wait_for_function("() => document.querySelector('#data-status').textContent.startsWith('Erased:')")
    tab.page.wait_for_function("() => document.querySelector('#data-status').textContent.includes('in another tab')")
    assert tab.page.locator("#picks li").count() == 0
    assert not here.link.get_nodes(here.link.run)  # the first tab has left
    assert other.evaluate("async () => (await indexedDB.databases()).length") == 0


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_and_use_the_section(browser, alone, tmp_path, viewport, scheme):
    (link,) = invited_after(alone, tmp_path)
    context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    page, axe = context.new_page(), make_axe()
    page.goto(link)
    page.wait_for_selector("#join:visible")
    assert list(unreadable(page, axe, "before joining")) == []
    page.click("#join")
    page.wait_for_selector("#part:visible")
    assert list(unreadable(page, axe, "after joining")) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def invited_after(alone, tmp_path):
    here = alone()
    return [here.address + link for link in invited(tmp_path / "run", 1)]
