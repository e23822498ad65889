"""Messages in JavaScript against those in Python, byte for byte."""

from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.web.console import Refused
from tests.web.node import needs_node

from federec.network.catalogue import Catalogue
from federec.network.messages import HEADER, MAGIC, PROTOCOL, Order, Reply
from federec.network.parameters import Payload

pytestmark = needs_node
CONFIG = {"method": "pfedrec", "settings": {"lr": 1e-05, "dim": 4, "lé\x7f😀": [1.0, True, None, -2, 1e300]}, "b": {}}
READ = (
    "const order = messages.parseOrder(content); return {...order, asked: null, digest: await messages.digest(order)};"
)


def order(**values):
    shared = Payload(torch.arange(3), {"items": torch.randn(3, 2)}, {"net.0": torch.randn(2)})
    given = {"labels": ["neu", "ö 😀"], "keep": 1, "next": "round 2, train", "shared": shared, "sealed": b"\x01\xff"}
    return Order("train", "0123", 7, CONFIG, [2, 3], **given | values)


def test_an_order_is_read_as_it_was_written(console):
    sent = order()
    got = console(READ, content=sent.pack())
    for name in ("kind", "run", "round", "config", "sizes", "labels", "keep", "full", "next", "sealed"):
        assert got[name] == getattr(sent, name), name
    assert got["shared"]["rows:items"]["values"] == sent.shared.rows["items"].flatten().tolist()
    assert got["shared"]["ids"]["values"] == [0, 1, 2]
    assert got["digest"].hex() == sent.digest


def test_the_digest_depends_on_all_that_is_asked(console):
    one = order()
    for other in (order(keep=2), order(full=True), order(shared=Payload.nothing())):
        assert console(READ, content=other.pack())["digest"].hex() == other.digest != one.digest


@settings(max_examples=20)
@given(
    run=st.text(max_size=20), round_=st.integers(0, 10**6), advert=st.binary(max_size=40), sealed=st.binary(max_size=40)
)
def test_a_reply_has_the_bytes_that_python_writes(console, run, round_, advert, sealed):
    version = Catalogue(("a", "é")).version
    sent = Reply(run, round_, version, 1, advert=advert, sealed=sealed, failed="device")
    made = {"run": run, "round": round_, "catalogue": version, "devices": 1, "failed": "device"}
    assert (
        console("return messages.packReply(reply);", reply=made | {"advert": advert, "sealed": sealed}) == sent.pack()
    )


def test_the_version_of_a_catalogue_is_that_of_python(console):
    for labels in ([], ["a"], ["Amélie (2001)", 'q"\\', "😀"]):
        version = console("return messages.catalogueVersion(labels);", labels=labels)
        assert version == Catalogue(tuple(labels)).version


def test_what_is_not_an_order_is_refused(console):
    content = order().pack()
    begin = HEADER.size
    length = HEADER.unpack_from(content)[2]
    text, rest = content[begin : begin + length], content[begin + length :]

    def with_text(text):
        return HEADER.pack(MAGIC, PROTOCOL, len(text)) + text + rest

    bad = [
        b"",
        content[:13],
        b"x" + content[1:],
        content[: begin + length - 1],
        content[:-1],
        content + b"\0",
        with_text(text.replace(b'"kind"', b'"kinds"')),
        with_text(text.replace(b'"train"', b'"obey"')),
        with_text(text.replace(b'"round": 7', b'"round": 7.0')),
        with_text(text.replace(b'"round": 7', b'"round": -7')),
        with_text(text.replace(b'"keep": 1', b'"keep": "1"')),
        with_text(text.replace(b"[2, 3]", b"[]")),
        with_text(text.replace(b"[2, 3]", b"[2, 1e400]")),
        with_text(text.replace(b"[2, 3]", b"[2, " + b"9" * 30 + b"]")),
        with_text(text.replace(b"[2, 3]", b"[" * 100 + b"]" * 100)),
        with_text(text.replace(b'"neu"', b'"\\u0000"')),
        with_text(text + b"x"),
        with_text(b"[1]"),
        with_text(b"\xff"),
        content.replace(b'"F32"', b'"F99"'),
        content.replace(b'"shape":[3,2]', b'"shape":[3,9]'),
        content.replace(b"rows:items", b"code:items"),
        content.replace(b"sealed", b"opened"),
    ]
    for wrong in bad:
        with pytest.raises(Refused):
            console(READ, content=wrong)
        with pytest.raises(ValueError):
            Order.parse(wrong)


def test_an_order_of_another_version_says_who_has_to_update(console):
    for version, remedy in ((PROTOCOL - 1, "update the server"), (PROTOCOL + 1, "reload this page")):
        with pytest.raises(Refused, match=remedy):
            console(READ, content=HEADER.pack(MAGIC, version, 0) + order().pack()[HEADER.size :])


@pytest.mark.thorough
def test_mutations_never_break_the_reader(console):
    """Whatever arrives is an order or refused: anything else fails in `console`."""
    content, random = bytearray(order().pack()), torch.Generator().manual_seed(3)
    for _ in range(500):
        wrong = bytearray(content)
        for place in torch.randint(len(wrong), (2,), generator=random).tolist():
            wrong[place] = int(torch.randint(256, (1,), generator=random))
        with suppress(Refused):
            console(READ, content=bytes(wrong))
