from dataclasses import replace

import pytest

from federec.methods.presets import presets
from federec.reproduction.drawings.training import configured, trained
from federec.runs.folder import RunFolder


def test_a_run_is_trained_once(request_):
    said = []
    request = replace(request_, say=said.append, runs=request_.runs / "once")
    first = trained(request, "popularity")
    assert len(said) == 1 and said[0].startswith("train  popularity on ")
    assert trained(request, "popularity").result == first.result
    assert len(said) == 1
    trained(replace(request, seed=1), "popularity")
    assert len(said) == 2 and len([*request.runs.iterdir()]) == 2


def test_an_interrupted_run_is_continued(request_, monkeypatch):
    request = replace(request_, runs=request_.runs / "interrupted")
    whole = trained(replace(request, runs=request_.runs / "whole"), "fedmf")

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunFolder, "write_result", interrupt)
        trained(request, "fedmf")
    assert trained(request, "fedmf").test == whole.test


def test_presets_of_the_data_are_used_under_their_protocol(request_):
    known = replace(request_, data="ml-100k")
    tuned = presets("fedrap")["ml-100k-clean"]["item_lr"]
    assert configured(known, "fedrap").settings["item_lr"] == tuned != 1000
    assert configured(known, "fedrap", item_lr=5.0).settings["item_lr"] == 5
    assert configured(known, "fedrap", preset=False).settings["item_lr"] == 1000
    assert configured(known, "fedrap", protocol="paper").settings["item_lr"] == 1000
    few = presets("fedmf")["filmtrust-clean"]["participation"]
    shared = configured(replace(request_, data="filmtrust"), "fedmf")
    assert shared.participation == few and "participation" not in shared.settings
    assert shared.rounds == request_.rounds
