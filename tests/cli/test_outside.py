"""A method in a file of its own, outside of federec: all that can be done with it, by command line and in Python."""

import json
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml

import federec as fr

MINE = '''"""Mine: FedMF whose devices also have a bias for each item.

    r_ij = sigma(p_i . v_j + b_j)          p_i: private;  v_j, b_j: shared
"""
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

import federec as fr


class Mine(fr.DeviceMethod):
    """Matrix factorisation with item biases."""

    dim: PositiveInt = 4
    """Width."""
    lr: NonNegativeFloat = 0.1
    """Step of the private vector."""
    item_lr: NonNegativeFloat = 20.0
    """Step of item rows."""

    def shared(self) -> dict[str, fr.Param]:
        return {"items": fr.item_rows(self.dim), "bias": fr.Param((1,), "zeros", rows=True)}

    def private(self) -> dict[str, fr.Param]:
        return {"user": fr.Param((self.dim,), scale=0.5)}

    def score(self, p: dict[str, Tensor]) -> Tensor:
        return fr.dot(p["user"], p["items"]) + p["bias"].squeeze(2)

    def step(self, step: fr.Step) -> None:
        self.descend(step, {"user": self.lr, "items": self.item_lr, "bias": self.item_lr})


class Kept(fr.FedMF):
    """A subclass that keeps its parent's name, and scores otherwise."""

    name = "fedmf"

    def score(self, p: dict[str, Tensor]) -> Tensor:
        return 0.5 * super().score(p)

    def fused_form(self, n_items: int) -> None:
        return None


class Halved(fr.Plugin):
    """Half the steps."""

    def descend(self, step, rates):
        super().descend(step, {name: rate / 2 for name, rate in rates.items()})
'''


@pytest.fixture
def here(tmp_path, monkeypatch, make_ratings):
    """An empty directory, with the file and some data, as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(MINE)
    make_ratings(tmp_path / "ratings.csv", users=20, items=40)
    yield tmp_path
    sys.modules.pop("mine", None)


def command(*args):
    return [sys.executable, "-m", "federec", *map(str, args)]


def result_of(path):
    return json.loads((path / "result.json").read_text())


def same(path, other):
    """Two runs ended alike."""
    one, two = result_of(path), result_of(other)
    assert one["test"] == two["test"] and one["best_round"] == two["best_round"]
    assert {f.name: f.read_bytes() for f in (path / "model").iterdir()} == {
        f.name: f.read_bytes() for f in (other / "model").iterdir()
    }


def test_trained_compared_tuned_and_asked_by_command_line(federec, here, monkeypatch):
    assert federec("train", "mine.py:Mine", "--data", "ratings.csv", "--rounds", 3, "-q").code == 0
    run = here / "runs" / "mine-ratings-clean-s0"
    config, result = yaml.safe_load((run / "config.yaml").read_text()), result_of(run)
    assert config["method"] == f"{here / 'mine.py'}:Mine" and result["method"] == "mine"
    assert {*config["sources"]} == {config["method"]} and len(config["sources"][config["method"]]) == 64
    given = ("--with", "mine.py:Halved", "--set", "lr=0.2", "--rounds", 2, "-q", "--out", "half")
    assert federec("train", "mine.py:Mine", "--data", "ratings.csv", *given).code == 0
    assert result_of(here / "half")["plugins"] == ["halved"]
    monkeypatch.chdir("/")
    assert federec("train", "--config", run / "config.yaml", "--out", here / "again", "-q").code == 0
    same(run, here / "again")
    said = federec("compare", run, here / "half").out
    assert "mine" in said and "mine+halved" in said
    assert "item" in federec("recommend", run, "--user", "u3", "-k", 2).out
    tuning = ("--data", here / "ratings.csv", "--trials", 2, "--rounds", 1, "--runs", here / "tuned", "--over", "lr")
    said = federec("tune", f"{here / 'mine.py'}:Mine", *tuning).out
    assert f"use it: federec train {here / 'mine.py'}:Mine --data" in said
    assert [path.name for path in (here / "tuned").iterdir()] == ["mine-ratings-clean-s0.db"]


def test_runs_of_another_content_of_the_file_are_told_apart(federec, here):
    for number in range(2):
        (here / "mine.py").write_text(MINE + f"# {number}\n")
        out = ("--out", here / str(number), "--rounds", 1, "-q")
        assert federec("train", "mine.py:Mine", "--data", "ratings.csv", *out).code == 0
    assert federec("compare", "0", "1").out.count("mine mine.py:Mine=") == 2


def test_trained_saved_and_loaded_in_python(federec, here, monkeypatch):
    (here / "script.py").write_text(
        "import federec as fr\nfrom mine import Mine, Halved\n"
        "data = fr.load('ratings.csv')\nmethod = Mine(lr=0.3)\n"
        "run = fr.train(method, data, rounds=3, engine='torch')\nassert run.method is method\n"
        "run.save('saved')\nloaded = fr.Run.load('saved')\n"
        "assert type(loaded.method) is Mine and loaded.method == method\n"
        "assert loaded.recommend('u1') == run.recommend('u1')\n"
        "halved = fr.train(method, data, rounds=1, plugins=[Halved, 'dualper'])\n"
        "assert halved.method.plugins == ('halved', 'dualper') and halved.method.lr == 0.3\n"
    )
    subprocess.run([sys.executable, "script.py"], check=True)
    config = yaml.safe_load((here / "saved" / "config.yaml").read_text())
    assert config["method"] == f"{here / 'mine.py'}:Mine"  # found again from any directory
    monkeypatch.chdir("/")
    assert federec("recommend", here / "saved", "--user", "u1").code == 0


def test_a_subclass_with_its_parent_s_name_is_trained_as_itself(federec, here):
    data = fr.load("ratings.csv")
    parent = fr.train(fr.FedMF(dim=4), data, rounds=2)
    given = ("--set", "dim=4", "--rounds", 2, "--data", "ratings.csv", "-q", "--out", "kept")
    assert federec("train", "mine.py:Kept", *given).code == 0
    loaded = fr.Run.load("kept")
    assert type(loaded.method).__name__ == "Kept" and loaded.result["method"] == "fedmf"
    assert not loaded.point.state.shared["items"].equal(parent.point.state.shared["items"])
    again = fr.train(type(loaded.method)(dim=4), data, rounds=2)
    assert loaded.point.state.shared["items"].equal(again.point.state.shared["items"])


def test_killed_changed_and_resumed_in_another_directory(federec, refused, here):
    given = ("train", "mine.py:Mine", "--data", "ratings.csv", "--set", "lr=0.2", "--rounds", 60, "-q", "--out")
    assert federec(*given, here / "whole").code == 0
    run = here / "run"
    process = subprocess.Popen(command(*given, run))
    limit = time.monotonic() + 60
    while not (run / "model" / "model.json").exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (run / "result.json").exists(), "it was over before the signal came"
    (here / "mine.py").write_text(MINE + "\n# changed\n")
    line = f"{here / 'mine.py'}: has changed since this run began; bring the old file back or start a new run\n"
    assert refused("train", "--resume", run) == line
    (here / "mine.py").write_text(MINE)
    subprocess.run(command("train", "--resume", run, "-q"), cwd="/", check=True, stdout=subprocess.DEVNULL)
    same(run, here / "whole")
    (here / "mine.py").write_text(MINE + "\n# changed\n")
    said = subprocess.run(command("recommend", run, "--user", "u1"), cwd="/", capture_output=True, text=True)
    warning = f"warning: {here / 'mine.py'}: has changed since the run {run} was trained; answers may differ\n"
    assert (said.returncode, said.stderr) == (0, warning)
    with pytest.warns(UserWarning, match="has changed since the run"):
        fr.Run.load(run)
    (here / "mine.py").unlink()
    assert "mine.py: no such file; check the path" in refused("recommend", run, "--user", "u1")


def test_faults_are_one_line(refused, here):
    train = ("train", "--data", "ratings.csv", "--out", "run")
    assert "mine.py: has no class 'Mien' - did you mean 'Mine'?" in refused(*train, "mine.py:Mien")
    assert "'mine.py:Halved' is no method" in refused(*train, "mine.py:Halved").replace(f"{here}/", "")
    assert "gone.py: no such file" in refused(*train, "gone.py:Mine")
    assert "mine.py: is a file, not a method; say which: mine.py:Mine, mine.py:Kept" in refused(*train, "mine.py")
    (here / "mine.py").write_text("import federec as fr\n\nclass Mine(fr.FedMF:\n    pass\n")
    for words in (train, ("check",), ("methods",), ("tune",)):
        assert "mine.py, line 3: is not valid Python (" in refused(*words, "mine.py:Mine")
    (here / "mine.py").write_text("raise RuntimeError('out of memory')\n")
    assert "mine.py, line 1: cannot be imported (RuntimeError: out of memory)" in refused(*train, "mine.py:Mine")
    assert not (here / "run").exists()


INTERACTIVE = """
import federec as fr
class Mine(fr.FedMF):
    pass
data = fr.load("ratings.csv")
method = Mine(dim=4)
def stop(line, rounds):
    raise KeyboardInterrupt
try:
    fr.train(method, data, rounds=2, out="run", on_round=stop)
except KeyboardInterrupt:
    pass
for call in (fr.resume, fr.Run.load):
    try:
        call("run")
    except fr.UserError as error:
        print(error)
    for wrong in (Mine(dim=5), fr.FedMF(dim=4)):
        try:
            call("run", method=wrong)
            raise SystemExit("accepted")
        except fr.UserError:
            pass
    run = fr.resume("run", method=method)
assert fr.Run.load("run", method=method).recommend("u1") == run.recommend("u1")
"""


def test_a_class_without_a_file_is_given_again(here):
    said = subprocess.run([sys.executable, "-c", INTERACTIVE], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert len(lines) == 2 and all("give the method object: fr.Run.load(path, method=...)" in line for line in lines)


@pytest.mark.slow
def test_two_ranks_of_torchrun(here):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    given = ["train", "mine.py:Mine", "--data", "ratings.csv", "--rounds", "3", "--seed", "1", "-q", "--out", "run"]
    subprocess.run([*torchrun, "-m", "federec", *given], check=True, stdout=subprocess.DEVNULL, timeout=120)
    run = fr.Run.load("run")
    alone = fr.train(f"{here / 'mine.py'}:Mine", fr.load("ratings.csv"), rounds=3, seed=1)
    assert run.result["method"] == "mine"
    assert run.test["sampled"]["hr@20"] == pytest.approx(alone.test["sampled"]["hr@20"], abs=0.06)
    for name, value in alone.point.state.shared.items():
        assert run.point.state.shared[name].allclose(value, rtol=1e-4, atol=1e-5)
