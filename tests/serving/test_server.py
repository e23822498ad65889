"""One server as a process of its own, attacked over its socket."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def server(served_run):
    command = [sys.executable, "-m", "federec", "serve", str(served_run("fedmf")), "--port", "0", "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    yield process, int(re.search(r":(\d+) ", line)[1])
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=20)
    assert process.returncode == 0 and said == "" and complaints == "", "it logs no request"


def post(port, body, path="/recommend", method="POST"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, json.loads(response.read() or b"{}")


def raw(port, *parts, pause=0.0):
    """What is answered to bytes that are sent piece by piece."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(pause)
        found = b""
        while part := client.recv(1 << 16):
            found += part
        return found


def healthy(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/health")
    return connection.getresponse().status == 200


def test_it_answers(server):
    _, port = server
    assert len(post(port, b'{"user": "u1", "k": 3}')[1]["items"]) == 3
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics")
    assert b'federec_serve_requests_total{kind="user",status="200"}' in connection.getresponse().read()


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b'{"user": "eve"}', 404), (b'{"items": ["nothing"]}', 404), (b'{"k": 3}', 422)],
)
def test_malformed_requests_are_refused(server, body, status):
    _, port = server
    found, answer = post(port, body)
    assert found == status and isinstance(answer["detail"], str)
    assert healthy(port)


def test_other_paths_and_verbs_are_refused(server):
    _, port = server
    assert post(port, b"", "/model")[0] == 404 and post(port, None, method="GET")[0] == 405


def test_ten_megabytes_are_refused(server):
    _, port = server
    body = b'{"items": [' + b'"i1",' * 2_000_000 + b'"i1"]}'
    assert len(body) > 10_000_000
    assert post(port, body) == (413, {"detail": "a body may have 65536 bytes"})
    assert healthy(port)


def test_ten_megabytes_of_unknown_length_are_refused(server):
    _, port = server
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    head = b"POST /recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in raw(port, head, *[chunk] * 3, b"0\r\n\r\n")
    assert healthy(port)


def test_slow_bodies_are_refused_and_block_nobody(server):
    _, port = server
    slow = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(50)]
    for client in slow:
        client.sendall(b'POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"us')
    began = time.monotonic()
    assert post(port, b'{"user": "u1"}')[0] == 200 and time.monotonic() - began < 4
    assert all(b" 408 " in client.recv(1 << 12) for client in slow)
    for client in slow:
        client.close()
    assert healthy(port)


def test_who_hangs_up_harms_nobody(server):
    process, port = server
    for part in (b"", b"POST /rec", b"POST /recommend HTTP/1.1\r\nContent-Length: 50\r\n\r\n{"):
        client = socket.create_connection(("127.0.0.1", port), timeout=20)
        client.sendall(part)
        client.close()
    assert b" 400 " in raw(port, b"\x00\x01\x02 nonsense\r\n\r\n")
    assert healthy(port) and process.poll() is None


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_server(served_run):
    command = [sys.executable, "-m", "federec", "serve", str(served_run("fedmf")), "--port", "0", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        time.sleep(0.5)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        assert process.wait(timeout=20) == 1
