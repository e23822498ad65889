"""A node writes and reads what Flower writes and reads."""

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from hypothesis import given
from hypothesis import strategies as st

from federec.network.certificates import Identity
from federec.runtimes.flower.fleet import HEARTBEAT, Fleet, delivered, fields, packed, reply
from federec.runtimes.flower.records import packed as record_of
from federec.runtimes.flower.records import unpacked

whole = st.integers(0, 2**64 - 1)


@given(whole, whole, st.text(max_size=20), st.binary(max_size=500), st.floats(0, 1e10))
def test_a_message_of_flower_is_read_and_a_reply_is_what_flower_reads(run, node, group, content, ttl):
    metadata = Metadata(run, "ticket", 1, node, "", group, 1e9, ttl, "query")
    proto = message_to_proto(make_message(metadata, record_of(content)))
    response = PullMessagesResponse(messages_list=[proto]).SerializeToString()
    ((_, found),) = fields(response)
    message = delivered(found)
    assert (message.run, message.ticket, message.source, message.node) == (run, "ticket", 1, node)
    assert (message.group, message.lifetime, message.kind, message.created) == (group, ttl, "query", 1e9)
    assert message.content == content
    request = PushMessagesRequest.FromString(reply(node, message, b"answer"))
    (sent,) = request.messages_list
    back = message_from_proto(sent)
    assert unpacked(back) == b"answer" and request.node.node_id == node
    assert (back.metadata.run_id, back.metadata.src_node_id, back.metadata.dst_node_id) == (run, node, 1)
    assert (back.metadata.reply_to_message_id, back.metadata.message_type) == ("ticket", "query")
    assert [tree.object_id for tree in request.message_object_trees] == [back.metadata.message_id]


def test_a_request_is_signed_as_flower_expects_it():
    identity = Identity.new()
    headers = Fleet("127.0.0.1:9", identity.key, b"", 1000)._headers()
    assert {TIMESTAMP_HEADER, FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER} <= headers.keys()
    assert HEARTBEAT == HEARTBEAT_MIN_INTERVAL
    from base64 import b64decode

    public = bytes_to_public_key(b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER]))
    assert verify_signature(public, headers[TIMESTAMP_HEADER].encode(), b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER]))


@given(st.binary(max_size=60))
def test_what_is_no_message_is_refused(junk):
    try:
        delivered(junk)
    except ValueError as error:
        assert str(error)


def test_messages_that_hold_something_else_are_empty():
    assert delivered(b"").content == b""
    assert delivered(packed((2, packed((1, packed((1, "other"), (4, b""))))))).content == b""
