import logging
import time

import pytest
import torch

from federec.runtimes import engines


@pytest.mark.parametrize(("loaded", "said"), [(0.01, ["compiling kernels, once (about 10 s)"]), (60.0, [])])
def test_compiling_is_logged_where_loading_would_be_over(monkeypatch, caplog, loaded, said):
    monkeypatch.setattr(engines, "_LOADED", loaded)
    monkeypatch.setattr(engines, "warm_up", lambda *_: time.sleep(0.1))
    devices = type("Devices", (), {"ptr": torch.zeros(1)})()
    engine = engines.Fused(None, devices, 0, None, torch.zeros(1))
    with caplog.at_level(logging.INFO, "federec"):
        assert engine.warm_up(None) >= 0.1
        assert engine.warm_up(None) == 0.0
    assert caplog.messages == said
