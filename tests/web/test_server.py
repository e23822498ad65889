import http.client
import socket
import threading

import pytest

from federec.errors import UserError
from federec.web.folder import STATIC
from federec.web.server import TYPES, page_server

FILES = {"index.html": b"<p>page</p>", "app.js": b"1", "federation/x.js": b"2", "model.safetensors": b"\0"}


@pytest.fixture
def ask():
    """Ask a running server: status, headers and content."""
    with page_server(FILES, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def asked(path, method="GET"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            connection.request(method, path)
            answer = connection.getresponse()
            found = answer.status, dict(answer.getheaders()), answer.read()
            connection.close()
            return found

        yield asked
        server.shutdown()


def test_files_have_their_types_and_headers(ask):
    status, headers, content = ask("/")
    assert (status, content, headers["Content-Type"]) == (200, b"<p>page</p>", "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
    assert ask("/app.js")[1]["Content-Type"].startswith("text/javascript")
    assert ask("/federation/x.js")[2] == b"2"
    assert ask("/index.html", "HEAD")[::2] == (200, b"")


@pytest.mark.parametrize("path", ["/nothing", "/../page.json", "/%2e%2e/etc/passwd", "//etc/passwd", "/federation/"])
def test_nothing_else_is_handed_out(ask, path):
    status, headers, _ = ask(path)
    assert status == 404 and "Content-Security-Policy" in headers


def test_what_is_no_address_is_refused():
    with page_server(FILES, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path in (b"http://[", b"http://[x]/", b"//["):
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as client:
                client.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                answer = client.recv(1 << 12)
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))  # some Pythons read //[ as /[
            assert b"Content-Security-Policy" in answer
        server.shutdown()


def test_nothing_can_be_sent(ask):
    assert ask("/", "POST")[0] == 501


def test_every_file_of_the_page_has_a_type():
    assert {file.suffix for file in STATIC.rglob("*") if file.is_file()} <= {*TYPES}


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="another program has this port; choose another with --port"):
            page_server(FILES, "127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="give a number from 0 to 65535"):
        page_server(FILES, "127.0.0.1", 70_000)
    with pytest.raises(UserError, match="check --host and --port"):
        page_server(FILES, "no such host", 0)
