"""Imports point one way: cli -> checks -> reproduction -> web -> serving -> export -> auditing -> runtimes -> network
-> tracking -> runs -> reporting -> federation -> attackers, plugins -> methods -> mathematics, stages, aggregators ->
cohort -> data, federation -> kernels, privacy, and evaluation -> data. `light` lies beside federation. Errors, files,
settings, streams and lazy may be used by all."""

import ast
from pathlib import Path

import pytest

import federec

ROOT = Path(federec.__file__).parent
EVERYBODY = {"errors", "files", "lazy", "settings", "streams", "__version__"}
BELOW = {"data": set(), "kernels": set(), "privacy": set(), "evaluation": {"data"}, "cohort": {"data"}}
for package in ("mathematics", "stages", "aggregators"):
    BELOW[package] = {"cohort", *BELOW["cohort"]}
BELOW["methods"] = {"mathematics", "stages", "aggregators", *BELOW["stages"]}
BELOW["plugins"] = {"methods", *BELOW["methods"]}
BELOW["attackers"] = {"methods", *BELOW["methods"]}
BELOW["light"] = {"methods", *BELOW["methods"]}
BELOW["federation"] = {"plugins", "attackers", "kernels", "privacy", *BELOW["plugins"]}
for package in (
    "reporting",
    "runs",
    "tracking",
    "network",
    "runtimes",
    "auditing",
    "export",
    "serving",
    "web",
    "reproduction",
    "checks",
    "cli",
):  # what is above is open to them
    BELOW[package] = {*BELOW}
WITHOUT_TORCH = {"data", "light"}
NAMED_ONLY = {"reporting": {"runs"}}
"""Peers whose types may be named in annotations, under `if TYPE_CHECKING`."""
FILES = sorted(ROOT.rglob("*.py"))


def imported(path):
    """(line, dotted name, for annotations only) of every import in a file, at the top or inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    annotations = {inner for node in guarded for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node in annotations) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            from_root = node.module == "federec"  # from federec import streams
            names = [f"federec.{alias.name}" for alias in node.names] if from_root else [node.module]
            yield from ((node.lineno, name, node in annotations) for name in names)


def wrong(path, package):
    """Imports that a file of the package may not have."""
    allowed = BELOW[package] | EVERYBODY | {package}
    for line, name, annotation in imported(path):
        top, _, rest = name.partition(".")
        home = rest.split(".")[0]
        if (
            top == "federec"
            and home
            and home not in allowed | (NAMED_ONLY.get(package, set()) if annotation else set())
        ):
            yield f"{path.name}:{line} imports {name}"
        if package in WITHOUT_TORCH and top == "torch" and not annotation:
            yield f"{path.name}:{line} imports {name}"


def test_every_package_has_its_place():
    assert {path.relative_to(ROOT).parts[0] for path in FILES if path.parent != ROOT} <= set(BELOW)


@pytest.mark.parametrize("package", BELOW)
def test_imports_point_one_way(package):
    inside = [path for path in FILES if path.is_relative_to(ROOT / package)]
    assert [fault for path in inside for fault in wrong(path, package)] == []


def test_only_the_flower_runtime_knows_flower():
    knows = {path.parent for path in FILES for _, name, _ in imported(path) if name.split(".")[0] == "flwr"}
    assert knows == {ROOT / "runtimes" / "flower"}


@pytest.mark.parametrize("name", ["errors", "files", "lazy", "settings", "streams"])
def test_what_everybody_uses_knows_nobody(name):
    used = {name for _, name, annotation in imported(ROOT / f"{name}.py") if not annotation}
    assert "torch" not in used
    assert {name for name in used if name.startswith("federec")} <= {"federec.errors"}


@pytest.mark.parametrize("package", ["methods", "plugins"])
def test_a_method_is_a_short_file(package):
    files = [path for path in (ROOT / package).glob("*.py") if path.name != "base.py"]
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length >= 210} == {}


@pytest.mark.parametrize(
    ("package", "line", "refused"),
    [
        ("data", "from federec.cohort.rows import Rows", True),
        ("data", "import torch.nn", True),
        ("data", "from federec import streams", False),
        ("evaluation", "from federec import cohort", True),
        ("evaluation", "import federec.federation.state", True),
        ("cohort", "import torch", False),
        ("reporting", "from federec.runtimes.run import Run", True),
        ("plugins", "from federec.methods.base import Method", False),
    ],
)
def test_a_wrong_import_is_noticed(tmp_path, package, line, refused):
    file = tmp_path / "file.py"
    file.write_text(f"def f():\n    {line}\n")
    assert bool(list(wrong(file, package))) == refused
