"""Whether two runs came to the same end."""

import json

import pytest
from safetensors.torch import load_file


def shared_after(folder):
    """Shared parameters after the last round."""
    after = json.loads((folder / "model" / "model.json").read_text())["round"]
    tensors = load_file(folder / "model" / f"state-{after}.safetensors")
    return {name: value for name, value in tensors.items() if name.startswith("shared:")}


def assert_same(run, reference):
    """Same rounds, same users, metrics within 0.001, shared parameters within a thousandth."""
    ours, theirs = (json.loads((folder / "result.json").read_text()) for folder in (run, reference))
    assert (ours["rounds"], ours["best_round"]) == (theirs["rounds"], theirs["best_round"])
    for key in ("users", "items", "interactions", "evaluated_users"):
        assert ours["data"][key] == theirs["data"][key]
    for part in ("valid", "test"):
        for kind in ("sampled", "full"):
            for name, value in ours[part][kind].items():
                assert value == pytest.approx(theirs[part][kind][name], abs=0.001)
    ours, theirs = shared_after(run), shared_after(reference)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name] - value).norm() <= 1e-3 * value.norm() + 1e-7
