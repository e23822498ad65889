"""Messages come back as they were packed; whatever else arrives is a ValueError."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from federec.network.messages import HEADER, MAGIC, PROTOCOL, Order, OtherVersion, Reply, parts
from federec.network.parameters import Payload
from federec.stages.quantise import Quantise

PAYLOAD = Payload(
    torch.tensor([1, 4, 8]), {"items": torch.randn(3, 4)}, {"net": torch.randn(4, 2), "b": torch.ones(())}
)
ORDER = Order("train", "films", 3, {"seed": 1}, [7, 9], ["m8"], 2, True, "next", PAYLOAD, b"sealed")
REPLY = Reply("films", 3, "9-abcdef012345", 2, {"loss": (81.5, 40)}, "", PAYLOAD, torch.tensor([0, 5]))
PACKED = {"order": ORDER.pack(), "reply": REPLY.pack()}


def same(one, other):
    assert one.arrays().keys() == other.arrays().keys()
    return all(np.array_equal(value, other.arrays()[name]) for name, value in one.arrays().items())


def test_what_is_packed_comes_back():
    order, reply = Order.parse(ORDER.pack()), Reply.parse(REPLY.pack())
    assert vars(order) | {"shared": None} == vars(ORDER) | {"shared": None}
    assert same(order.shared, PAYLOAD)
    assert vars(reply) | {"update": None, "wanted": None} == vars(REPLY) | {"update": None, "wanted": None}
    assert same(reply.update, PAYLOAD)
    assert reply.wanted.tolist() == [0, 5]


@pytest.mark.parametrize("bits", [8, 16])
def test_quantised_values_travel_as_codes_and_come_back_exactly(bits):
    quantise = Quantise(bits=bits)
    rows, layer = (quantise.rounded(torch.randn(*shape), torch.rand(*shape)) for shape in ((300, 16), (1, 4, 2)))
    payload = Payload(torch.arange(300), {"items": rows}, {"net": layer[0]}, bits)
    packed = Reply("films", 3, "9-abcdef012345", 2, update=payload).pack()
    assert same(Reply.parse(packed).update, payload)
    assert len(packed) < 300 * (16 * bits // 8 + 1 + 4) + 700


@pytest.mark.parametrize("name", ["rows:items", "layers:net", "ids", "rows:other"])
def test_exponents_that_do_not_fit_are_refused(name):
    for exponents in (np.zeros(3, np.float32), np.zeros(2, np.int8), np.zeros(3, np.int8)):
        tensors = PAYLOAD.packed() | {f"exponents:{name}": exponents, "wanted": np.zeros(0, np.int32)}
        tensors |= {name: np.zeros(0, np.uint8) for name in ("advert", "sealed")}
        text, _ = parts(PACKED["reply"])
        with pytest.raises(ValueError, match="values cannot be read"):
            Reply.parse(HEADER.pack(MAGIC, PROTOCOL, len(text)) + text + save(tensors))


def test_the_header_is_what_it_was_in_every_version():
    """Peers of other versions read it: it must never change."""
    text, _ = parts(PACKED["reply"])
    assert PACKED["reply"][:14] == b"federec\0" + struct.pack("<H", PROTOCOL) + struct.pack("<I", len(text))
    assert json.loads(text)["run"] == "films"


@pytest.mark.parametrize("version", [0, PROTOCOL - 1, PROTOCOL + 1, 65535])
@pytest.mark.parametrize("parse", [Order.parse, Reply.parse])
def test_another_version_is_told_from_garbage_whatever_follows_the_header(version, parse):
    for rest in (b"", b"anything", PACKED["order"]):
        with pytest.raises(OtherVersion) as told:
            parse(HEADER.pack(MAGIC, version, 2**31) + rest)
        older = "device" if version < PROTOCOL else "server"
        assert told.value.told("device 7", "server", "device").endswith(f"update federec on the {older}")
        older = "server" if version < PROTOCOL else "device"
        assert told.value.told("the server", "device", "server").endswith(f"update federec on the {older}")


def refused_or_read(content):
    for parse in (Order.parse, Reply.parse):
        try:
            parse(content)
        except ValueError:
            continue


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_value_error(content):
    refused_or_read(content)
    refused_or_read(HEADER.pack(MAGIC, PROTOCOL, len(content) // 2) + content)


@given(st.sampled_from([*PACKED]), st.integers(0, 2000))
def test_a_truncated_message_is_a_value_error(name, length):
    content = PACKED[name]
    short = content[: length % len(content)]
    for parse in (Order.parse, Reply.parse):
        with pytest.raises(ValueError):
            parse(short)


@given(st.sampled_from([*PACKED]), st.lists(st.integers(0, 8 * 2000), min_size=1, max_size=8))
def test_flipped_bits_are_a_message_or_a_value_error(name, places):
    content = bytearray(PACKED[name])
    for place in places:
        content[place // 8 % len(content)] ^= 1 << place % 8
    refused_or_read(bytes(content))


@given(
    st.sampled_from(["kind", "run", "round", "config", "sizes", "labels", "keep", "full", "sums", "devices", "other"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=4,
    ),
)
def test_odd_metadata_is_a_message_or_a_value_error(name, value):
    for packed in PACKED.values():
        text, tensors = parts(packed)
        odd = json.dumps(json.loads(text) | {name: value}).encode()
        refused_or_read(HEADER.pack(MAGIC, PROTOCOL, len(odd)) + odd + tensors)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"1" * 10_000, b'{"a": 1e999}', b"\xff", b""], ids=len)
def test_json_that_breaks_parsers_is_a_value_error(text):
    _, tensors = parts(PACKED["order"])
    with pytest.raises(ValueError):
        Order.parse(HEADER.pack(MAGIC, PROTOCOL, len(text)) + text + tensors)


def test_an_order_is_no_reply():
    with pytest.raises(ValueError, match="without 'advert'"):
        Reply.parse(PACKED["order"])
    with pytest.raises(ValueError, match="other fields"):
        Order.parse(PACKED["reply"])
