"""What the page shows of a message is the message: as Python would write it, and as Python reads it."""

import json

import numpy as np
import pytest
import torch
from tests.web.node import needs_node, node
from tests.web.test_recommend import READ

import federec as fr
from federec.cohort.update import Update
from federec.network.catalogue import Catalogue
from federec.network.messages import Reply
from federec.network.parameters import Payload
from federec.network.vector import flat, length
from federec.stages.randomness import Simulated
from federec.web.folder import write_web

pytestmark = needs_node
TOLD = (
    READ
    + """const learned = recommend.learn(read, picks, 5n);
const steps = await told.messageSteps(read, picks, learned);
const last = learned.last;
return { steps, ids: last?.ids, change: last && rows.change(last.rows ?? last.common, last.received) };"""
)
MODULES = ["model", "recommend", "rows", "told"]
PICKS = [3, 41, 17, 8, 20]


def told(path, folder, **given):
    return node(MODULES, TOLD, folder=str(write_web(path, folder)), **{"picks": PICKS, **given})


def as_bytes(step):
    return bytes(step["bytes"])


def update_of(run, said):
    """The update as Python's channel takes it."""
    ids, name = torch.tensor(said["ids"]), next(iter(run.method.sends()))
    rows = {name: torch.tensor(said["change"]).view(len(ids), -1)}
    return Update(run.data.n_items, ids, torch.tensor([len(ids)]), rows, {})


def integers(run, update):
    """The vector of a secure sum, as Python makes it."""
    dense = fr.Dense().device(update, Simulated.of(0, 1, torch.tensor([0])))
    payload = Payload(torch.arange(run.data.n_items), dense.rows, {})
    return flat(Reply("r", 1, "", 1, update=payload), run.method.sends(), run.data.n_items, fr.SecureSum().most)


@pytest.mark.parametrize("name", ["pfedrec", "fedrap"])
def test_the_message_is_pythons(trained, tmp_path, name):
    run, path = trained(name)
    said = told(path, tmp_path / "page")
    clear, whole, leaves = said["steps"]
    update = update_of(run, said)
    assert {tuple(row["items"]) for row in clear["rows"] if row["picked"]} == {(item,) for item in PICKS}
    assert np.array_equal(np.frombuffer(as_bytes(whole), "<i4"), integers(run, update))
    assert whole["size"] == 4 * length(run.method.sends(), run.data.n_items)
    reply = Reply.parse(as_bytes(leaves))
    assert (leaves["size"], reply.catalogue) == (len(leaves["bytes"]), Catalogue.of(run.data).version)
    assert not reply.update.rows and not reply.update.layers and not reply.sums and not len(reply.wanted)
    assert len(reply.sealed) == 1 + 32 + whole["size"]  # version, digest of the order, masked numbers


def test_pairs_are_those_that_fedease_sends(trained, tmp_path):
    _, path = trained("fedease")
    clear, whole, leaves = told(path, tmp_path / "page")["steps"]
    numbers = np.frombuffer(as_bytes(whole), "<i4")[-(60 * 60) :].reshape(60, 60)
    assert {*map(tuple, np.argwhere(numbers).tolist())} == {(one, two) for one in PICKS for two in PICKS}
    assert (numbers[numbers != 0] * 2 * 2048.0 / (1 << 24) == 1.0).all()
    assert len(clear["rows"]) == 15  # pairs, an item with itself among them
    assert len(Reply.parse(as_bytes(leaves)).sealed) == 33 + whole["size"]


def test_who_reads_what_leaves_cannot_tell_the_picks(trained, tmp_path):
    """The attack: look for the numbers that stand out. Without the mask they name the touched items; with it every byte
    is as likely as any other, and the same picks never look the same."""
    _, path = trained("pfedrec")
    words = []
    for at in range(2):
        _, whole, leaves = told(path, tmp_path / f"page{at}")["steps"]
        words.append(np.frombuffer(Reply.parse(as_bytes(leaves)).sealed[33:], "<u4"))
        plain = np.frombuffer(as_bytes(whole), "<i4")
    standing_out = (plain[-480:].reshape(60, 8) != 0).any(1)
    assert 5 <= standing_out.sum() <= 25  # the picks and the drawn items, and no other
    assert not (words[0] == words[1]).any()
    for masked in words:
        counts = np.bincount(np.frombuffer(masked.tobytes(), np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 400  # chi-squared with 255 degrees of freedom: p < 1e-7
        zero = masked[-480:].reshape(60, 8)[~standing_out].astype(np.float64).mean() / 2**32
        assert abs(zero - 0.5) < 0.1  # rows that did not change are not small


def test_clip_is_pythons(trained, tmp_path):
    run, path = trained("pfedrec", channel=[fr.Clip(norm=0.5), fr.SecureSum()])
    said = told(path, tmp_path / "page")
    _, clip, whole, _ = said["steps"]
    expected = fr.Clip(norm=0.5).device(update_of(run, said), Simulated.of(0, 1, torch.tensor([0])))
    got = np.frombuffer(as_bytes(whole), "<i4")
    assert clip["name"] == "After clip" and np.abs(got - integers(run, expected)).max() <= 1


def test_what_a_stage_does_that_is_not_shown_is_not_made_up(trained, tmp_path):
    _, path = trained("pfedrec", channel=[fr.Quantise(bits=8)])
    folder = tmp_path / "page"
    assert [step["name"] for step in told(path, folder)["steps"]] == ["Before any stage"]
    assert [stage["stage"] for stage in json.loads((folder / "page.json").read_text())["channel"]] == ["quantise"]


def test_a_centralised_reference_has_no_message(trained, tmp_path):
    _, path = trained("ease")
    assert told(path, tmp_path / "page")["steps"] == []
