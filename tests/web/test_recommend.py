"""A device in the page against the same device in torch: files as they are written, rounds as they are learned."""

from dataclasses import replace

import pytest
import torch
from tests.web.node import needs_node, node

from federec.cohort.draw import Devices
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.scoring import score_global, score_own
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.web.folder import write_web

READ = """const { readFile } = await import("node:fs/promises");
const read = await model.readModel((name) => readFile(`${folder}/${name}`).then((bytes) => new Uint8Array(bytes)));
"""
LEARN = READ + "return recommend.learn(read, picks, BigInt(number)).scores;"
USER, NUMBER = 7, 2**61 + 12345


def history_of(run):
    split = run.config.split_of(run.data)
    return split, split.train[split.ptr[USER] : split.ptr[USER + 1]]


def new_device(run, split):
    """The scores of a device that joins the finished run, with the server's rows as they are and its own number."""
    method, seed, shared = run.method, run.config.seed, run.point.best_state.shared
    numbers = torch.arange(split.data.n_users)
    numbers[USER] = NUMBER
    devices = replace(Devices.of(split, False), numbers=numbers)
    state = State.start(method, split.data.n_items, len(devices), seed)
    state.shared = {name: value.clone() for name, value in shared.items()}
    users, items, found = torch.tensor([USER]), torch.arange(split.data.n_items)[None], []
    for round_ in range(1, run.point.best.round + 1):
        own = lambda cohort: found.append(score_own(method, cohort, state, items)[0])  # noqa: E731
        learn(method, state, devices, users, seed, round_, Channel(), lambda update, users: None, own)
    return found[-1] if method.view == "own" else score_global(method, state, users, items, devices)[0]


@needs_node
@pytest.mark.parametrize(
    ("name", "plugins"),
    [("pfedrec", ()), ("fedmf", ()), ("fedmf", ("dualper",)), ("fedrecon", ()), ("fedrap", ()), ("fedease", ())],
    ids=str,
)
def test_a_person_in_the_page_gets_what_a_device_would_get(trained, tmp_path, name, plugins):
    run, path = trained(name, plugins)
    split, history = history_of(run)
    expected = new_device(run, split)
    for precision, tolerance in (("float32", 1e-5), ("int8", 0.05)):
        folder = write_web(path, tmp_path / precision, precision)
        given = {"folder": str(folder), "picks": history, "number": str(NUMBER)}
        got = torch.tensor(node(["model", "recommend"], LEARN, **given))
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@needs_node
def test_a_centralised_reference_scores_as_it_does_in_python(trained, tmp_path):
    run, path = trained("ease")
    assert not isinstance(run.method, DeviceMethod)
    split, history = history_of(run)
    expected = run.method.scores(run.point.best_state.shared, split, torch.tensor([USER]))[0]
    given = {"folder": str(write_web(path, tmp_path / "page", "float32")), "picks": history, "number": "0"}
    torch.testing.assert_close(torch.tensor(node(["model", "recommend"], LEARN, **given)), expected)


@needs_node
def test_the_best_are_without_picks_and_in_a_fixed_order():
    body = "return recommend.best(Float32Array.of(1, 5, NaN, 5, 9, 2), [4], 4);"
    assert node(["recommend"], body) == [1, 3, 5, 0]


@needs_node
def test_an_item_without_a_title_is_called_by_its_label():
    body = """const texts = {"page.json": "{}", "catalogue.json": JSON.stringify({items, titles: {a: "A title"}})};
    const empty = Uint8Array.from([2, 0, 0, 0, 0, 0, 0, 0, 123, 125]);
    const read = async (name) => (name in texts ? new TextEncoder().encode(texts[name]) : empty);
    return (await model.readModel(read)).titles;"""
    items = ["a", "b", "constructor", "__proto__", "toString"]  # the last three are properties of every object
    assert node(["model"], body, items=items) == ["A title", *items[1:]]
