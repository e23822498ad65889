import importlib.util
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
from filelock import FileLock
from numba.core.dispatcher import Dispatcher

from federec.kernels import additive, compiling, linear
from federec.kernels.compiling import NotCompiledError, only_loading, sources
from federec.kernels.linear import linear_round, linear_scores


def test_compiled_code_is_kept_until_a_source_changes_that_it_is_made_of(tmp_path):
    imported = "from federec.kernels.{} import piece\n"
    for name, needs in {"round": "step", "step": "draw", "draw": "", "other": "draw"}.items():
        (tmp_path / f"{name}.py").write_text(imported.format(needs) if needs else "")

    def stamps():
        return {name: sources(tmp_path / f"{name}.py", tmp_path) for name in ("round", "other")}

    before = stamps()
    (tmp_path / "step.py").write_text(imported.format("draw") + "x = 1")
    assert stamps()["round"] != before["round"] and stamps()["other"] == before["other"]
    (tmp_path / "draw.py").write_text("x = 1")
    assert stamps()["other"] != before["other"]


def test_kernels_of_one_file_have_the_same_stamp_and_those_of_others_another():
    def stamp(kernel):
        return kernel._cache._cache_file._source_stamp

    assert stamp(linear_round) == stamp(linear_scores) == sources(Path(linear.__file__))
    assert stamp(additive.additive_round) == sources(Path(additive.__file__)) != stamp(linear_round)


@compiling.jit
def _inner(values):
    total = np.float32(0.0)
    for k in range(len(values)):
        total += values[k]
    return total


@compiling.jit
def _outer(values):
    return _inner(values) + _inner(values[1:])


def test_a_piece_has_no_machine_code_and_works_inside_a_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def whole(values):
        return _outer(values)

    assert compiling.kernel(whole)(np.arange(4, dtype=np.float32)) == 12
    (compiled,) = _outer.overloads.values()
    assert not compiled.codegen._engine.is_symbol_defined(compiled.fndesc.llvm_func_name)


def test_only_loading_tells_what_is_compiled_and_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def tripled(value):
        return 3 * value

    first, second = compiling.kernel(tripled), compiling.kernel(tripled)
    with pytest.raises(NotCompiledError), only_loading():
        first(4)
    assert first(4) == 12
    with only_loading():
        assert second(4) == 12
        with pytest.raises(NotCompiledError):  # for numbers of another type
            second(4.0)
    assert second(4.0) == 12


@pytest.mark.parametrize("gone", [b"linear\nNoMore", b"no_more\nLinear"])
def test_compiled_code_whose_types_are_no_more_is_compiled_anew(tmp_path, monkeypatch, gone):
    kept = linear_scores._cache._cache_file
    monkeypatch.setattr(kept, "_index_path", str(tmp_path / "index"))
    (tmp_path / "index").write_bytes(pickle.dumps(kept._version) + b"cfederec.kernels." + gone + b"\n.")
    assert kept._load_index() == {}


def test_a_kernel_that_another_process_compiles_is_waited_for_and_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def doubled(value):
        return 2 * value

    first, second = compiling.kernel(doubled), compiling.kernel(doubled)
    with ThreadPoolExecutor(1) as pool, FileLock(Path(first._cache._cache_path) / "doubled.lock"):
        waiting = pool.submit(second, 4)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        Dispatcher.compile(first, (numba.int64,))  # as the process that has the lock does
    assert waiting.result() == 8
    assert (sum(second._cache_hits.values()), sum(second._cache_misses.values())) == (1, 0)


def test_compiled_code_outlives_the_folder_of_its_source(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("FEDEREC_CACHE", str(tmp_path / "cache"))
    counts = []
    for clone in ("first", "second"):
        (tmp_path / clone).mkdir()
        source = tmp_path / clone / "halves.py"
        source.write_text("def halved(value):\n    return value / 2\n")
        spec = importlib.util.spec_from_file_location("halves", source)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "halves", module)
        spec.loader.exec_module(module)
        halved = compiling.kernel(module.halved)
        assert halved(3) == 1.5
        counts.append(sum(halved._cache_misses.values()))
    assert counts == [1, 0]


def test_compiled_code_that_is_not_used_is_deleted_and_that_of_others_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("FEDEREC_CACHE", str(tmp_path))
    old, used = compiling._kept_for("old"), compiling._kept_for("used")
    os.utime(old, (0, 0))
    compiling._kept_for("new")
    assert used.is_dir() and not old.exists()
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert compiling._kept_for("new") is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDEREC_CACHE", str(tmp_path / "file"))
    assert compiling._kept_for("new") is None
