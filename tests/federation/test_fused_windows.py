import numpy as np
import pytest
import torch
from tests.mathematics.test_transformer import parameters
from tests.mathematics.test_transformer import windows as padded

from federec import streams
from federec.checks.comparing import close
from federec.checks.engines import engines_agree
from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.engine import why_not
from federec.federation.fused_windows import KernelNetwork, compile_network
from federec.kernels import transformer as kernels
from federec.mathematics.transformer import Transformer
from federec.mathematics.windows import Windows, gradient, outputs, using
from federec.methods.sasrec import SASRec
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer

SHAPES = {
    "small": (Transformer(dim=8, layers=2, heads=2, window=6), 20),
    "one layer": (Transformer(dim=4, layers=1, heads=1, window=3), 7),
    "several blocks of items": (Transformer(dim=12, layers=2, heads=3, window=4), 400),
    "several blocks of queries": (Transformer(dim=8, layers=2, heads=1, window=150), 20),
}
SMALL = {"dim": 8, "window": 6, "warm_up": 2, "schedule": 20, "dropout": 0.2}


@pytest.fixture(scope="module")
def devices(split_of):
    random = np.random.default_rng(4)
    return Devices.of(split_of([random.permutation(90)[:n] for n in (90, 2, 3, 40) * 20], 90), True)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


def histories(shape, n_items):
    """Some longer than a window or two, some without a next item."""
    random = np.random.default_rng(5)
    lengths = (3 * shape.window + 2, 1, 2, 0, shape.window, shape.window + 1, 5, 0, 2 * shape.window)
    return padded(*(random.integers(n_items, size=n).tolist() for n in lengths))


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("name", SHAPES)
def test_the_gradient_is_torchs(devices, threads, name, rate):
    shape, n_items = SHAPES[name]
    p, (items, counts) = parameters(shape, n_items), histories(shape, n_items)
    windows, keys = Windows.of(items, counts, shape.window), streams.keys(0, 1, torch.arange(len(items)))
    expected, slopes = gradient(shape, p, windows, rate, keys)
    with using(KernelNetwork(devices)):
        losses, found = gradient(shape, p, windows, rate, keys)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)
    assert list(found) == list(slopes)
    for part, value in slopes.items():
        close(found[part], value, part, 1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_outputs_are_torchs(devices, threads, name):
    shape, n_items = SHAPES[name]
    p, (items, counts) = parameters(shape, n_items), histories(shape, n_items)
    expected = outputs(shape, p, items, counts)
    with using(KernelNetwork(devices)):
        torch.testing.assert_close(outputs(shape, p, items, counts), expected, rtol=1e-4, atol=1e-4)


def test_a_large_catalogue_has_logits_of_few_rows(split_of, monkeypatch):
    monkeypatch.setattr(kernels, "_LOGITS", 1)
    devices, (shape, n_items) = Devices.of(split_of([np.arange(5)], 9), False), SHAPES["several blocks of queries"]
    p, (items, counts) = parameters(shape, n_items), histories(shape, n_items)
    windows, keys = Windows.of(items, counts, shape.window), streams.keys(0, 1, torch.arange(len(items)))
    _, slopes = gradient(shape, p, windows, 0.0, keys)
    with using(KernelNetwork(devices)):
        for part, value in gradient(shape, p, windows, 0.0, keys)[1].items():
            close(value, slopes[part], part, 1e-4)


@pytest.mark.parametrize("broken", ["items", "item_bias", "places", "1.hidden.in.weight", "norm.scale"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_told(devices, broken, value):
    shape, n_items = SHAPES["small"]
    p, (items, counts) = parameters(shape, n_items), histories(shape, n_items)
    p[broken][0] = value
    windows, keys = Windows.of(items, counts, shape.window), streams.keys(0, 1, torch.arange(len(items)))
    with using(KernelNetwork(devices)):
        losses, _ = gradient(shape, p, windows, 0.0, keys)
    assert not losses.sum().isfinite()


def test_without_windows_there_is_no_gradient(devices):
    shape, n_items = SHAPES["small"]
    p = parameters(shape, n_items)
    compile_network(shape, p, devices)
    for items, counts in ((torch.zeros(2, 1), [1, 0]), (torch.zeros(2, 0), [0, 0]), (torch.zeros(0, 3), [])):
        items, counts = items.long(), torch.tensor(counts, dtype=torch.long)
        with using(KernelNetwork(devices)):
            losses, found = gradient(shape, p, Windows.of(items, counts, 5), 0.1, counts)
            at_end = outputs(shape, p, items, counts)
        assert losses.tolist() == [0.0] * len(counts)
        assert not any(value.any() for value in found.values())
        assert at_end.shape == (len(counts), shape.dim)
        assert not at_end[counts == 0].any()


def test_torch_computes_again_after_the_kernels(devices):
    shape, n_items = SHAPES["small"]
    p, (items, counts) = parameters(shape, n_items), histories(shape, n_items)
    before = outputs(shape, p, items, counts)
    with pytest.raises(ZeroDivisionError), using(KernelNetwork(devices)):
        _ = 1 / 0
    assert torch.equal(outputs(shape, p, items, counts), before)


@pytest.mark.parametrize("users", [None, [1, 4, 0, 7, 8]], ids=["all", "some"])
@pytest.mark.parametrize("plugins", [(), ("ldp",)], ids=["fedsasrec", "fedsasrec+ldp"])
def test_the_kernel_plays_the_same_rounds(devices, threads, plugins, users):
    settings = SMALL | ({"laplace": 0.01} if plugins else {})
    users = None if users is None else torch.tensor(users)
    engines_agree(build("fedsasrec", plugins, settings), devices, users, range(1, 3))


def test_no_kernel_takes_several_local_steps():
    reason = why_not(build("fedsasrec", (), {"local_steps": 2}), 40, "cpu")
    assert reason is not None and "with these settings" in reason


def centralised(split, engine, **settings):
    return trainer(SASRec(**SMALL), split, protocol("clean"), 0, engine=engine, **settings)


def test_sasrec_learns_the_same_by_kernels(random_split):
    split = random_split(users=30, items=40)
    slow, quick = (centralised(split, engine) for engine in ("torch", "fused"))
    for round_ in range(1, 4):
        expected, found = slow.play(round_), quick.play(round_)
        assert (expected.engine, found.engine) == ("torch", "fused")
        for name, value in expected.model.shared.items():
            torch.testing.assert_close(found.model.shared[name], value, rtol=1e-3, atol=1e-4)
    for of, figures in slow.review(expected.model, 3).test.items():
        assert quick.review(found.model, 3).test[of] == pytest.approx(figures, abs=0.05)


def test_a_short_run_of_sasrec_takes_kernels_only_if_they_are_compiled(random_split, monkeypatch):
    split = random_split(users=30, items=40)
    compile_network(SASRec(**SMALL).network, centralised(split, "torch").state.shared, Devices.of(split, False))
    monkeypatch.setattr("federec.runtimes.simulation._LOADABLE", 0)
    assert centralised(split, "auto", rounds=1).engine_choice == ("fused", "the kernel was compiled before")
    monkeypatch.setattr("federec.runtimes.simulation.loads", lambda work: False)
    assert centralised(split, "auto", rounds=1).engine_choice.used == "torch"
    assert centralised(split, "auto", rounds=1, played_by="fused").engine_choice.used == "fused"
    assert centralised(split, "auto", rounds=1, played_by="torch").engine_choice.used == "torch"
    assert centralised(split, "auto", rounds=10**6).engine_choice.used == "fused"
    assert centralised(split, "auto", rounds=10**6, played_by="torch").engine_choice.used == "torch"


def test_other_centralised_methods_have_no_kernel(random_split):
    with pytest.raises(UserError, match="'ease' cannot run on the fused engine: no kernel plays 'ease'"):
        trainer(build("ease", ()), random_split(), protocol("clean"), 0, engine="fused")
