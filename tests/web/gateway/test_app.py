"""The gateway: who gets in, what strangers can do to it, and what a tab that was admitted can do to others."""

import socket
import threading
import time

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from tests.runtimes.flower.fleet import MOST, raw
from tests.web.gateway.front import FILES, Front

from federec.network.certificates import Authority
from federec.runtimes import bounds
from federec.web.gateway import app, tokens

CALLS = ("orders", "reply", "leave")


@pytest.fixture
def front(tmp_path):
    front = Front(tmp_path)
    yield front
    front.stop()


def test_an_order_goes_to_its_tab_and_the_reply_comes_back(front):
    tab = front.joined("a")
    assert front.transport.nodes() == {tab.node}
    assert front.transport.users(tab.node) == 1
    (ticket,) = front.sent(tab, content=b"learn")
    response = tab.post("orders")
    assert (response.content, response.headers["federec-ticket"]) == (b"learn", ticket)
    assert tab.reply(ticket, b"done").status_code == 204
    (delivery,) = front.transport.collect([ticket])
    assert (delivery.ticket, delivery.content) == (ticket, b"done")
    assert front.link.outgoing == {tab.node: {}}


def test_a_tab_that_waits_hears_of_an_order_at_once(front):
    tab, heard = front.joined("a"), []
    waiting = threading.Thread(target=lambda: heard.append((tab.post("orders").content, time.monotonic())))
    waiting.start()
    time.sleep(0.3)
    began = time.monotonic()
    front.sent(tab)
    waiting.join(5)
    ((content, at),) = heard
    assert content == b"order"
    assert at - began < 0.3


def test_who_waits_in_vain_gets_nothing_and_asks_again(front, monkeypatch):
    monkeypatch.setattr(bounds, "HOLD", 0.2)
    assert front.joined("a").post("orders").status_code == 204


def test_a_tab_that_is_closed_is_not_waited_for(front):
    tab = front.joined("a")
    (ticket,) = front.sent(tab)
    tab.post("orders")
    head = f"POST /gateway/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tab.token}\r\nContent-Length: 0\r\n\r\n"
    assert raw(front.port, head.encode(), 0.3) is None  # it waits for an order, and then hangs up
    limit = time.monotonic() + 5
    while front.transport.nodes() and time.monotonic() < limit:
        time.sleep(0.01)
    assert [each.error for each in front.transport.collect([ticket])] == ["the node has left"]


def test_a_tab_that_is_reloaded_is_still_there_when_its_old_connection_ends(front):
    tab = front.joined("a")
    head = f"POST /gateway/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tab.token}\r\nContent-Length: 0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", front.port)) as old:
        old.sendall(head.encode())
        limit = time.monotonic() + 5
        while not front.gateway.begun[tab.node] > 1 and time.monotonic() < limit:
            time.sleep(0.01)
        assert tab.join().is_success
    while front.gateway.nodes[tab.node].running and time.monotonic() < limit:
        time.sleep(0.01)
    assert not front.gateway.nodes[tab.node].running  # the old request has ended
    assert front.transport.nodes() == {tab.node}


def test_who_leaves_is_not_waited_for(front):
    tab = front.joined("a")
    (ticket,) = front.sent(tab)
    assert tab.post("leave").status_code == 204
    assert [each.error for each in front.transport.collect([ticket])] == ["the node has left"]


def test_a_tab_that_was_reloaded_is_sent_its_order_again(front, monkeypatch):
    monkeypatch.setattr(bounds, "HOLD", 0.2)
    tab = front.joined("a")
    front.sent(tab)
    assert tab.post("orders").content == b"order"
    assert tab.post("orders").status_code == 204
    assert tab.join().is_success
    assert tab.post("orders").content == b"order"


# The page


def test_the_page_comes_from_the_same_origin_with_strict_headers(front):
    tab = front.tab("a", admitted=False)
    for path, content in (("", FILES["index.html"]), ("app.js", b"1;"), ("federation/bytes.js", b"2;")):
        response = tab.ask("GET", path)
        assert response.content == content
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers
    assert tab.ask("HEAD", "app.js").headers["content-length"] == "2"
    assert tab.ask("GET", "gateway/description").json() == {"run": "r"}
    assert tab.ask("GET", "gateway/description").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "nothing.js", 404),
        ("GET", "../../etc/passwd", 404),
        ("GET", "%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "gateway/", 404),
        ("GET", "gateway/orders", 405),
        ("POST", "gateway/nodes", 404),
        ("POST", "gateway/description", 405),
        ("POST", "app.js", 405),
        ("OPTIONS", "gateway/orders", 405),
        ("DELETE", "gateway/orders", 405),
    ],
)
def test_there_is_nothing_else(front, method, path, status):
    response = front.joined("a").ask(method, path)
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"


def test_pages_of_other_origins_get_no_answer(front):
    tab = front.joined("a")
    for name in ("challenge", "join", *CALLS):
        for site in ("cross-site", "same-site"):
            assert tab.post(name, **{"sec-fetch-site": site}).status_code == 403
    assert tab.post("challenge", **{"sec-fetch-site": "same-origin"}).is_success


# Strangers


def test_nobody_gets_in_without_a_token(front):
    known = front.joined("known")
    (ticket,) = front.sent(known)
    forged = known.token[:-4] + ("AAAA" if known.token[-4:] != "AAAA" else "BBBB")
    other = tokens.Tokens().token(known.node)  # of another process
    challenge = known.challenge()
    for token in (forged, other, challenge, "x", "", "é", known.token[:20], known.token + "AAAA"):
        for name in CALLS:
            head = {"federec-ticket": ticket}
            bearer = {"authorization": f"Bearer {token}".encode()} if token else {}
            response = known.ask("POST", f"gateway/{name}", b"reply", **bearer, **head)
            assert response.status_code == 401, (token, name)
    assert list(front.transport.collect([ticket])) == []
    assert front.lines("refused")


def test_a_token_ends(front, monkeypatch):
    tab = front.tab("a")
    monkeypatch.setattr(tokens, "TOKEN", -1.0)
    tab.join()
    response = tab.post("orders")
    assert (response.status_code, response.json()["detail"]) == (401, "the token has ended; join again")
    monkeypatch.setattr(tokens, "TOKEN", 600.0)
    tab.join()
    assert tab.post("leave").is_success


def test_only_the_holder_of_an_admitted_key_joins(front, tmp_path, monkeypatch):
    known, stranger = front.tab("known"), front.tab("stranger", admitted=False)
    why = "this device was not admitted, or was removed"
    assert stranger.join().json()["detail"] == why
    assert stranger.join(key=known.identity.public).json()["detail"] == "the signature does not fit"
    signed = known.identity.sign(known.challenge().encode())
    assert known.join(signature=signed).json()["detail"] == "the signature does not fit"
    challenge = known.challenge()
    assert known.join(challenge=challenge).is_success
    assert known.join(challenge=challenge).json()["detail"] == "the challenge has ended; sign a new one"  # a replay
    elsewhere = tokens.Tokens().challenge()
    assert "not a challenge of this gateway" in known.join(challenge=elsewhere).json()["detail"]
    monkeypatch.setattr(tokens, "CHALLENGE", -1.0)
    assert known.join().json()["detail"] == "the challenge has ended; sign a new one"
    other = Authority.create(tmp_path / "other")  # whatever else is in the folder does not admit
    (tmp_path / "nodes" / "forged.crt").write_bytes(other.admit(stranger.identity.request(), 1))
    assert stranger.join().json()["detail"] == why


def test_a_tab_that_is_removed_or_has_ended_is_refused_with_the_next_request(front):
    tab, over = front.joined("a"), front.tab("over", days=0)
    assert over.join().json()["detail"] == "the certificate of this device has ended"
    (front.folder / "nodes" / "a.crt").unlink()
    for name in CALLS:
        assert tab.post(name).status_code == 401
    assert tab.join().status_code == 401


def test_what_is_not_a_request_to_join_is_refused(front):
    tab = front.tab("a")
    for body in (
        b"",
        b"{}",
        b"[]",
        b"1",
        b"\xff",
        b'{"key": 1}',
        b"[" * 10_000,
        b'{"key": "", "challenge": "", "signature": ""}',
    ):
        assert tab.post("join", body).status_code == 400
    assert tab.join(key=b"\x02" + bytes(32)).status_code in (400, 401)


def test_a_stranger_cannot_ask_without_end(front, monkeypatch):
    monkeypatch.setattr(bounds, "_BURST", 3.0)
    monkeypatch.setattr(bounds, "_RATE", 0.01)
    tab = front.tab("a", admitted=False)
    codes = [tab.post("challenge").status_code for _ in range(40)]
    assert codes[:30] == [200] * 30 and codes[-1] == 429
    front.gateway.addresses.clear()
    for number in range(5000):
        front.gateway._stranger(f"10.0.{number // 256}.{number % 256}")
    assert len(front.gateway.addresses) == 4096
    same = front.gateway._stranger("2001:db8::1")
    assert same is front.gateway._stranger("2001:db8::dead:beef:0:1")  # one has a whole /64 network
    assert same is not front.gateway._stranger("2001:db8:0:1::1")


# A tab that was admitted, and is up to no good


def test_a_tab_cannot_answer_for_another(front):
    victim, rogue = front.joined("victim"), front.joined("rogue")
    stolen, own = front.sent(victim, rogue)
    assert rogue.reply(stolen).status_code == 403
    assert list(front.transport.collect([stolen])) == []
    assert rogue.post("orders").headers["federec-ticket"] == own


def test_replies_that_nobody_waits_for_are_refused(front):
    tab = front.joined("a")
    (ticket,) = front.sent(tab)
    for wrong in ("", "cd" * 32, ticket[:-1]):
        assert tab.reply(wrong).status_code == 403
    assert tab.reply(ticket).is_success
    assert tab.reply(ticket).status_code == 403  # it has answered


def test_bodies_that_nobody_waits_for_are_not_kept(front, monkeypatch):
    async def read_body(*_):
        raise AssertionError("it was read")

    tab = front.joined("a")
    monkeypatch.setattr(bounds, "read_body", read_body)
    response = tab.reply("cd" * 32, bytes(MOST))
    assert (response.status_code, response.json()["detail"]) == (403, "nobody waits for this message")


def test_a_reply_that_comes_after_its_time_is_refused(front):
    tab = front.joined("a")
    (ticket,) = front.sent(tab)
    assert tab.post("orders").content == b"order"
    front.link.delete_messages({ticket})  # as Flower does with what is too old
    assert [each.error for each in front.transport.collect([ticket])] == ["its time is over"]
    assert front.link.outgoing == {tab.node: {}}
    assert tab.reply(ticket).status_code == 403
    assert not front.link.message_res_store


def test_a_tab_that_learns_long_is_waited_for(front, monkeypatch):
    monkeypatch.setattr(app, "_ALIVE", 0.05)
    monkeypatch.setattr(bounds, "HOLD", 0.1)
    tab, idle = front.joined("a"), front.joined("b")
    (ticket,) = front.sent(tab)
    assert tab.post("orders").content == b"order"
    assert tab.post("orders").status_code == 204
    assert idle.post("orders").status_code == 204
    time.sleep(0.2)
    assert list(front.transport.collect([ticket])) == []
    assert front.transport.nodes() == {tab.node}  # a tab without an order must give signs of life
    assert tab.reply(ticket).is_success
    assert [each.content for each in front.transport.collect([ticket])] == [b"reply"]


def test_large_and_slow_bodies_are_refused(front, monkeypatch):
    monkeypatch.setattr(bounds, "_DRAIN", 0.2)
    monkeypatch.setattr(bounds, "_BODY", 0.3)
    tab = front.joined("a")
    (ticket,) = front.sent(tab)
    assert tab.reply(ticket, bytes(MOST + 1)).status_code == 413
    assert tab.post("join", bytes(1 << 15)).status_code == 413
    assert tab.post("orders", bytes(1 << 15)).status_code == 413
    begin = (
        f"POST /gateway/reply HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tab.token}\r\nfederec-ticket: {ticket}\r\n"
    )
    assert raw(front.port, f"{begin}Content-Length: 9000000000\r\n\r\n".encode()).startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    chunked = f"{begin}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 32
    assert raw(front.port, chunked).startswith(b"HTTP/1.1 413")
    assert raw(front.port, f"{begin}Content-Length: 100\r\n\r\nabc".encode(), 5.0).startswith(b"HTTP/1.1 408")
    stranger = b"POST /gateway/reply HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000000\r\n\r\n"
    assert raw(front.port, stranger).startswith(b"HTTP/1.1 401")  # what a stranger sends is not read
    assert tab.reply(ticket, bytes(MOST)).is_success


def test_many_requests_of_one_tab_do_not_keep_others_away(front, monkeypatch):
    monkeypatch.setattr(bounds, "_BURST", 20.0)
    monkeypatch.setattr(bounds, "_RATE", 0.1)
    rogue, honest = front.joined("rogue"), front.joined("honest")
    (ticket,) = front.sent(honest)
    assert 429 in {rogue.reply("x").status_code for _ in range(30)}
    assert honest.post("orders").content == b"order"
    assert honest.reply(ticket).is_success


def test_connections_that_say_nothing_are_closed(front, monkeypatch):
    monkeypatch.setattr(bounds, "_SILENCE", 0.3)
    assert raw(front.port, b"POST /gateway/orders HTTP/1.1\r\nHost: x\r\nX-Slow: ", 5.0) == b""
