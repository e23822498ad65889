"""Every public name has a docstring with an example, and every example runs."""

import doctest
import inspect
import sys

import numpy as np
import pytest

import federec as fr

WITH_METHODS = ("Run", "Comparison", "Interactions", "Tuned")
"""Classes that users get and whose methods they call."""

TRACKERS = {"TensorBoard": "tensorboard", "MLflow": "mlflow"}
"""Names whose examples need an extra."""


@pytest.fixture(scope="module")
def names():
    """What examples use without making it, as docs/api.md says: a small data set and a run on it."""
    random = np.random.default_rng(0)
    items = np.concatenate([random.permutation(80)[:15] for _ in range(60)])
    data = fr.Interactions(
        name="small",
        users=np.repeat(np.arange(60), 15).astype(np.int32),
        items=items.astype(np.int32),
        user_ids=np.arange(60),
        item_ids=np.arange(80),
        times=np.tile(np.arange(15.0), 60),
    )
    return {"fr": fr, "data": data, "run": fr.train(fr.FedMF(dim=8), data, rounds=2)}


def members(name):
    kinds = (property, staticmethod)
    for key, member in vars(getattr(fr, name)).items():
        if key[0] != "_" and (inspect.isfunction(member) or isinstance(member, kinds)):
            yield f"{name}.{key}"


@pytest.mark.parametrize("name", fr.__all__)
def test_every_public_name_has_an_example(name):
    assert ">>> " in (getattr(fr, name).__doc__ or ""), f"fr.{name} has no example"


@pytest.mark.parametrize("name", [member for name in WITH_METHODS for member in members(name)])
def test_every_public_method_is_documented(name):
    owner, member = name.split(".")
    assert inspect.getdoc(inspect.getattr_static(getattr(fr, owner), member))


@pytest.mark.parametrize("name", fr.__all__)
def test_the_examples_run(name, names, tmp_path, monkeypatch):
    if extra := TRACKERS.get(name):
        pytest.importorskip(extra, reason=f"pip install federec[{extra}]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)  # frames are of polars in the examples
    for example in doctest.DocTestFinder().find(getattr(fr, name), name, globs=names):
        assert doctest.DocTestRunner().run(example).failed == 0, example.name
