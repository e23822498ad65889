"""What a stranger can do to a port before there is a request: heads without end, silence, many connections."""

import socket
import time

import pytest

pytest.importorskip("uvicorn", reason="pip install federec[serve]")

from federec.runtimes import bounds
from federec.runtimes.ports import answering, listening

ASK = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def echoed(scope, receive, send):
    """Says how many bytes a body has."""
    try:
        size = b"%d" % len(await bounds.read_body(scope, receive, 1 << 24))
    except bounds.Refused as refused:
        await bounds.refuse(refused, scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(size))]})
    await send({"type": "http.response.body", "body": size})


@pytest.fixture
def port():
    listener = listening("127.0.0.1", 0)
    server = answering(echoed, listener, ())
    yield listener.getsockname()[1]
    server.should_exit = server.force_exit = True


def asked(port, request=ASK):
    """A connection, and the answer to its first request."""
    client = socket.create_connection(("127.0.0.1", port), timeout=5)
    client.sendall(request)
    return client, answer_on(client)


def answer_on(client):
    """A whole answer, with its body; empty where the connection is closed."""
    found = b""
    while not found.partition(b"\r\n\r\n")[2]:
        part = client.recv(1 << 12)
        if not part:
            break
        found += part
    return found


def taken(client, part, most=1 << 25):
    """Bytes that a connection takes in of a part that is sent again and again, at `most`."""
    size = 0
    try:
        while size < most:
            client.sendall(part)
            size += len(part)
    except OSError:
        pass
    return size


def closed(client, drip=b""):
    """Seconds until a connection is closed, while a byte is sent now and then."""
    began = time.monotonic()
    client.settimeout(0.05)
    while time.monotonic() - began < 5:
        try:
            client.sendall(drip)
            if not client.recv(1 << 12):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-Many: " + b"a" * 1000 + b"\r\n"),
        (b"GET / HTTP/1.1\r\nX-Long: ", b"a" * 1000),
        (b"GET /", b"a" * 1000),
        (CHUNKED + b"3\r\nabc\r\n0\r\n", b"X-Trailer: " + b"a" * 1000 + b"\r\n"),
        (ASK + b"GET / HTTP/1.1\r\n", b"X-Next: " + b"a" * 1000 + b"\r\n"),
    ],
)
def test_a_head_that_never_ends_is_cut_off(port, begin, part):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(begin)
        assert taken(client, part) < 1 << 24  # sockets keep some megabytes themselves
    asked(port)[0].close()


def test_large_bodies_are_taken_in(port):
    body = bytes(1 << 23)
    plain = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert asked(port, plain + body)[1].endswith(b"8388608")
    small = b"20\r\n" + bytes(32) + b"\r\n"  # chunks whose lengths come to more than a head may have
    assert asked(port, CHUNKED + small * 20_000 + b"0\r\n\r\n")[1].endswith(b"640000")


def test_bytes_that_make_no_request_do_not_keep_a_connection(port, monkeypatch):
    monkeypatch.setattr(bounds, "_SILENCE", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert closed(client, b"a") < 2
    client, answer = asked(port)
    assert answer.startswith(b"HTTP/1.1 200")
    client.sendall(b"G")  # one request, and one byte of the next
    assert closed(client) < 2
    client, _ = asked(port)
    client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
    assert closed(client, b"a") < 2


def test_who_asks_again_later_is_answered(port, monkeypatch):
    monkeypatch.setattr(bounds, "_SILENCE", 0.2)
    client, _ = asked(port)
    for _ in range(2):
        time.sleep(0.4)
        client.sendall(ASK[:10])
        time.sleep(0.05)
        client.sendall(ASK[10:])
        assert answer_on(client).startswith(b"HTTP/1.1 200")


def test_connections_are_bounded(port, monkeypatch):
    held = [asked(port)[0] for _ in range(3)]
    monkeypatch.setattr(bounds, "_CONNECTIONS", len(bounds._OPEN))
    assert refused(port)
    for client in held:
        client.close()
    assert closed_everywhere()
    assert asked(port)[1].startswith(b"HTTP/1.1 200")


def test_one_address_cannot_have_all_connections(port, monkeypatch):
    monkeypatch.setattr(bounds, "_NEIGHBOURS", 2)
    monkeypatch.setattr(bounds, "_is_loopback", lambda address: False)
    held = [asked(port) for _ in range(2)]
    assert all(answer.startswith(b"HTTP/1.1 200") for _, answer in held)
    assert refused(port)
    monkeypatch.undo()  # a proxy on this machine brings everybody
    assert all(asked(port)[1].startswith(b"HTTP/1.1 200") for _ in range(4))


def refused(port):
    """Whether a new connection is closed without an answer."""
    try:
        client, answer = asked(port)
    except OSError:
        return True
    client.close()
    return answer == b""


def closed_everywhere():
    """Whether all connections of this process are gone, within a moment."""
    limit = time.monotonic() + 5
    while bounds._OPEN and time.monotonic() < limit:
        time.sleep(0.01)
    return not bounds._OPEN


def test_neighbours_are_those_of_one_household():
    assert bounds.neighbourhood("10.0.0.1") == "10.0.0.1" != bounds.neighbourhood("10.0.0.2")
    assert bounds.neighbourhood("2001:db8::1") == bounds.neighbourhood("2001:db8::ffff:1:2:3")
    assert bounds.neighbourhood("2001:db8::1") != bounds.neighbourhood("2001:db8:0:1::1")
    assert bounds.neighbourhood("::ffff:10.0.0.1") == "10.0.0.1"
    assert bounds.neighbourhood("fe80::1%eth0") == "fe80::/64"
    assert bounds.neighbourhood("?") == "?"
