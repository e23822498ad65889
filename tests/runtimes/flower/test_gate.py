"""The server's only port: who gets in, and what a device that was admitted can do to the others."""

import datetime
import threading
import time

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from tests.runtimes.flower.fleet import MOST, raw

from federec.runtimes import bounds
from federec.runtimes.flower import admission, gate


def sent(fleet, *devices, content=b"order"):
    """Orders to devices that are there; the ticket of each."""
    for device in devices:
        assert device.activate().is_success
    tickets = fleet.transport.send({device.node.node_id: content for device in devices}, "train", 1, 5.0)
    return {node: ticket for ticket, node in tickets.items()}


def test_an_order_goes_to_its_device_and_the_reply_comes_back(fleet):
    device = fleet.device("a", users=7)
    ticket = sent(fleet, device)[device.node.node_id]
    assert fleet.transport.nodes() == {device.node.node_id}
    assert fleet.transport.users(device.node.node_id) == 7
    assert list(fleet.transport.collect([ticket])) == []
    (message,) = device.pull()[1].messages_list
    assert message.metadata.message_id == ticket
    assert device.push(device.message(fleet.link.run, ticket, b"done")).is_success
    (delivery,) = fleet.transport.collect([ticket])
    assert (delivery.ticket, delivery.content) == (ticket, b"done")
    assert [each.content for each in fleet.transport.collect([ticket])] == [None]  # it was read
    assert fleet.link.outgoing == {device.node.node_id: {}}  # nothing is left over
    assert not fleet.link.message_ins_store
    assert not fleet.link.message_res_store


def test_a_device_that_waits_hears_of_an_order_at_once(fleet):
    device, heard = fleet.device("a"), []
    device.activate()
    waiting = threading.Thread(target=lambda: heard.append((device.pull()[1].messages_list, time.monotonic())))
    waiting.start()
    time.sleep(0.3)
    began = time.monotonic()
    sent(fleet, device)
    waiting.join(5)
    ((messages, at),) = heard
    assert len(messages) == 1
    assert at - began < 0.3


def test_who_waits_in_vain_gets_nothing_and_asks_again(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "HOLD", 0.2)
    device = fleet.device("a")
    device.activate()
    response, pulled = device.pull()
    assert response.is_success
    assert not pulled.messages_list


def test_a_device_that_was_killed_is_sent_its_order_again(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "HOLD", 0.2)
    device = fleet.device("a")
    sent(fleet, device)
    assert len(device.pull()[1].messages_list) == 1
    assert len(device.pull()[1].messages_list) == 0
    device.activate()
    assert len(device.pull()[1].messages_list) == 1


def test_who_leaves_is_not_waited_for(fleet):
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest

    device = fleet.device("a")
    ticket = sent(fleet, device)[device.node.node_id]
    assert device.post("fleet/deactivate-node", DeactivateNodeRequest(node_id=device.node.node_id)).is_success
    assert [each.error for each in fleet.transport.collect([ticket])] == ["the node has left"]
    assert not fleet.transport.nodes()


# Outsiders


def test_whatever_else_flower_can_do_is_not_there(fleet):
    device, others = fleet.device("a"), [path for _, path in PROTOBUF_REQUEST_TYPES if path not in gate._PATHS]
    assert len(others) > 60
    for path in others:
        assert device.post(path.removeprefix("/v1/"), b"").status_code == 404
    for path in ("/", "/docs", "/openapi.json", "/health", "/v1/fleet/", "/v1/fleet/pull-messages"):
        assert raw(fleet.port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).startswith(b"HTTP/1.1 404")


def test_strangers_are_refused_and_written_down(fleet):
    stranger, known = fleet.device("stranger", admitted=False), fleet.device("known")
    assert stranger.activate().status_code == 401
    assert stranger.pull(known.node)[0].status_code == 401
    assert stranger.post("fleet/register-node", RegisterNodeFleetRequest(public_key=stranger.public)).status_code == 404
    late = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    for headers, why in (
        ({}, "it is not signed by a device"),
        (stranger.headers(public=known.public), "the signature does not fit"),
        (known.headers(when=late), "the device's clock is wrong"),
        (known.headers() | {"flwr-public-key": "!"}, "it is not signed by a device"),
        (stranger.headers(), "this device was not admitted, or was removed"),
    ):
        response = known.post("fleet/pull-messages", b"", **(headers or {"x": "y"}))
        assert (response.status_code, response.json()["detail"]) == (401, why)
    told = fleet.lines("refused")
    assert {line["why"] for line in told} >= {"the signature does not fit", "it is not signed by a device"}
    assert len(told) == 4  # not a line for each


def test_a_stranger_cannot_fill_the_audit_log(fleet, monkeypatch):
    monkeypatch.setattr(admission, "_MOST_TOLD", 5)
    for number in range(20):
        fleet.admission.refuse("why", f"10.0.0.{number}")
        fleet.admission.refuse("why", f"10.0.0.{number}")
    assert len(fleet.lines("refused")) <= 6


def test_bodies_of_strangers_are_not_read(fleet):
    stranger = fleet.device("stranger", admitted=False)
    head = "".join(f"{name}: {value}\r\n" for name, value in stranger.headers().items())
    text = f"POST /v1/fleet/push-messages HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 9000000000\r\n\r\n"
    assert raw(fleet.port, text.encode()).startswith(b"HTTP/1.1 401")


# Admission


def test_a_certificate_that_is_taken_away_is_refused_with_the_next_request(fleet):
    device = fleet.device("a", users=3)
    ticket = sent(fleet, device)[device.node.node_id]
    (fleet.folder / "nodes" / "a.crt").unlink()
    assert device.pull()[0].status_code == 401
    assert not fleet.transport.nodes()
    assert [each.error for each in fleet.transport.collect([ticket])] == ["the node has left"]
    (line,) = fleet.lines("admitted")
    assert (line["name"], line["users"], line["device"]) == ("a", 3, str(device.node.node_id))
    assert [line["name"] for line in fleet.lines("removed")] == ["a"]


def test_certificates_that_end_are_warned_of_and_then_refused(fleet, monkeypatch):
    soon, over = fleet.device("soon", days=20), fleet.device("over", days=0)
    assert soon.activate().is_success
    response = over.activate()
    assert (response.status_code, response.json()["detail"]) == (401, "the certificate of this device has ended")
    assert [(line["certificate"], line["days"]) for line in fleet.lines("ends")] == [("soon", 19)]
    assert [line["certificate"] for line in fleet.lines("ended")] == ["over"]
    monkeypatch.setattr(admission, "WARN", 4000)  # the root has 3650 days
    fleet.admission._looked -= 100
    fleet.admission.look()
    assert {line["certificate"] for line in fleet.lines("ends")} == {"soon", "ca.crt"}


def test_only_certificates_of_the_root_admit(fleet, tmp_path):
    from federec.network.certificates import Authority

    device = fleet.device("a", admitted=False)
    other = Authority.create(tmp_path / "other")
    (tmp_path / "nodes" / "a.crt").write_bytes(other.admit(device.identity.request(), 1))
    (tmp_path / "nodes" / "b.crt").write_bytes(b"garbage")
    assert device.activate().status_code == 401
    assert sorted(line["file"] for line in fleet.lines("unusable")) == ["a.crt", "b.crt"]
    (tmp_path / "nodes" / "a.crt").unlink()
    (tmp_path / "nodes" / "c.crt").write_bytes(fleet.authority.admit(device.identity.request(), 1))
    assert device.activate().is_success


# A device that was admitted, and is up to no good


def test_a_device_cannot_answer_for_another(fleet):
    victim, rogue = fleet.device("victim"), fleet.device("rogue")
    tickets = sent(fleet, victim, rogue)
    run, stolen = fleet.link.run, tickets[victim.node.node_id]
    as_victim = rogue.message(run, stolen, source=victim.node.node_id)
    assert rogue.pull(victim.node)[0].status_code == 401
    assert rogue.push(as_victim, victim.node).status_code == 401
    assert rogue.push(as_victim).status_code == 403
    assert rogue.push(rogue.message(run, stolen)).status_code == 403
    assert list(fleet.transport.collect([stolen])) == []


def test_a_device_cannot_give_orders(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "HOLD", 0.2)
    victim, rogue = fleet.device("victim"), fleet.device("rogue")
    for device in (victim, rogue):
        device.activate()
    order = rogue.message(fleet.link.run, "", source=SUPERLINK_NODE_ID, target=victim.node.node_id)
    assert rogue.push(order).status_code == 403
    assert not victim.pull()[1].messages_list


def test_replies_that_nobody_waits_for_are_refused(fleet):
    device = fleet.device("a")
    ticket = sent(fleet, device)[device.node.node_id]
    run = fleet.link.run
    assert device.push(device.message(run, "cd" * 32)).status_code == 403
    assert device.push(device.message(run + 1, ticket)).status_code == 403
    assert device.push(device.message(run, ticket), trees=2).status_code == 403
    assert device.push(device.message(run, ticket)).is_success
    assert device.push(device.message(run, ticket)).status_code == 403  # it has answered
    assert not fleet.link._object_push_sessions


def test_large_and_garbled_bodies_are_refused(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "_DRAIN", 0.2)
    device = fleet.device("a")
    ticket = sent(fleet, device)[device.node.node_id]
    assert device.push(device.message(fleet.link.run, ticket, bytes(MOST))).status_code == 413
    assert device.post("fleet/pull-messages", bytes(1 << 15)).status_code == 413
    head = "".join(f"{name}: {value}\r\n" for name, value in device.headers().items())
    begin = f"POST /v1/fleet/push-messages HTTP/1.1\r\nHost: x\r\n{head}"
    assert raw(fleet.port, f"{begin}Content-Length: 9000000000\r\n\r\n".encode()).startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    assert raw(fleet.port, f"{begin}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 32).startswith(
        b"HTTP/1.1 413"
    )
    for garbage in (b"", b"\xff" * 100, b"\n\x04abcd"):
        assert device.post("fleet/push-messages", garbage).status_code in (400, 401, 403)
    assert device.push(device.message(fleet.link.run, ticket)).is_success


def test_many_requests_of_one_device_do_not_keep_others_away(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "HOLD", 0.2)
    monkeypatch.setattr(bounds, "_BURST", 20.0)
    monkeypatch.setattr(bounds, "_RATE", 0.1)
    rogue, honest = fleet.device("rogue"), fleet.device("honest")
    ticket = sent(fleet, honest)[honest.node.node_id]
    codes = {rogue.post("fleet/send-node-heartbeat", b"").status_code for _ in range(30)}
    assert 429 in codes
    assert len(honest.pull()[1].messages_list) == 1
    assert honest.push(honest.message(fleet.link.run, ticket)).is_success


def test_connections_that_say_nothing_are_closed(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "_SILENCE", 0.3)
    monkeypatch.setattr(bounds, "_BODY", 0.3)
    assert raw(fleet.port, b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nX-Slow: ", 5.0) == b""
    device = fleet.device("a")
    head = "".join(f"{name}: {value}\r\n" for name, value in device.headers().items())
    slow = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 100\r\n\r\nabc"
    assert raw(fleet.port, slow.encode(), 5.0).startswith(b"HTTP/1.1 408")


def test_there_is_a_bound_on_connections(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "_CONNECTIONS", 0)
    assert raw(fleet.port, b"", 5.0) == b""
