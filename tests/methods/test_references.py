"""References: a class from anywhere, named by a text that finds it again."""

import pickle
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import federec as fr
from federec.errors import UserError
from federec.methods import references
from federec.methods.fedmf import FedMF
from federec.methods.importing import digest
from federec.methods.registry import METHOD, METHODS, method_class, trusted_method
from federec.plugins.registry import PLUGIN, PLUGINS, plugin_class, trusted_plugin

MINE = '''"""A method and a plug-in."""
import federec as fr

class Mine(fr.FedMF):
    """Mine."""
    name = "fedmf"
    extra: float = 2.0

class Other(fr.FedMF):
    pass

class Outer:
    class Inner(fr.FedMF):
        pass

class MyPlugin(fr.Plugin):
    """Nothing at all."""

helper = 3
'''


@pytest.fixture
def write(tmp_path):
    """Write a file of a name that no other test has; its path."""
    count = 0

    def call(text=MINE, stem="mine"):
        nonlocal count
        count += 1
        path = tmp_path / f"{stem}_{tmp_path.name}_{count}.py".replace("-", "_")
        path.write_text(text)
        return path

    return call


def refusal(kind, reference):
    with pytest.raises(UserError) as caught:
        kind.find(reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "known"), [(METHOD, METHODS), (PLUGIN, PLUGINS)])
def test_registered_classes_are_named_by_their_names(kind, known):
    for name, class_ in known.items():
        assert kind.find(name) is kind.find(class_) is class_ and kind.reference(class_) == name
        assert digest(class_) is None


def test_a_class_in_a_file(write):
    path = write()
    class_ = method_class(f"{path}:Mine")
    assert class_.__name__ == "Mine" and class_().extra == 2.0
    assert method_class(f"{path}:Mine") is class_  # imported once
    assert METHOD.reference(class_) == f"{path}:Mine"  # not its parent's, whose name it keeps
    assert len(digest(class_)) == 64
    inner = method_class(f"{path}:Outer.Inner")
    assert METHOD.reference(inner) == f"{path}:Outer.Inner"
    assert plugin_class(f"{path}:MyPlugin").plugin == "my-plugin"


def test_names_come_from_the_class_where_it_gives_none(write):
    path = write()
    names = [method_class(f"{path}:{each}").name for each in ("Mine", "Other", "Outer.Inner")]
    assert names == ["fedmf", "other", "inner"]


def test_a_relative_path_is_one_from_here(write, monkeypatch, tmp_path):
    path = write()
    monkeypatch.chdir(path.parent)
    assert method_class(f"{path.name}:Mine") is method_class(f"{path}:Mine")
    assert references.absolute(f"{path.name}:Mine") == f"{path}:Mine"
    assert references.absolute("pfedrec") == "pfedrec" and references.absolute("a.b:C") == "a.b:C"


def test_a_file_that_has_changed_is_imported_again(write):
    path = write()
    before = method_class(f"{path}:Mine")
    path.write_text(MINE.replace("2.0", "3.0"))
    after = method_class(f"{path}:Mine")
    assert (before().extra, after().extra) == (2.0, 3.0) and digest(after) is not None
    assert "cannot be found again" in refusal(METHOD, METHOD.reference(before))
    path.write_text("1 +")
    assert "line 1: is not valid Python" in refusal(METHOD, f"{path}:Mine")


def test_objects_can_be_pickled_and_modules_beside_the_file_are_found(write, tmp_path):
    beside = write("WIDTH = 7\n", "beside")
    path = write(
        f"from {beside.stem} import WIDTH\nimport federec as fr\nclass Mine(fr.FedMF):\n    dim: int = WIDTH\n"
    )
    method = method_class(f"{path}:Mine")()
    assert method.dim == 7 and pickle.loads(pickle.dumps(method)) == method


def test_a_file_called_like_a_module_hides_nothing(tmp_path):
    (tmp_path / "json.py").write_text(MINE)
    assert method_class(f"{tmp_path / 'json.py'}:Mine").__name__ == "Mine"
    import json

    assert json.loads("1") == 1


def test_a_class_in_a_package(tmp_path, monkeypatch):
    (tmp_path / "somepackage").mkdir()
    (tmp_path / "somepackage" / "__init__.py").touch()
    (tmp_path / "somepackage" / "inside.py").write_text("from .helper import FedMF\nclass Mine(FedMF):\n    pass\n")
    (tmp_path / "somepackage" / "helper.py").write_text("from federec.methods.fedmf import FedMF\n")
    monkeypatch.syspath_prepend(tmp_path)
    class_ = method_class("somepackage.inside:Mine")
    assert METHOD.reference(class_) == "somepackage.inside:Mine"
    assert method_class(f"{tmp_path / 'somepackage' / 'inside.py'}:Mine") is class_  # the same file, imported once


def test_a_class_made_inside_a_function_is_not_found_again():
    class Mine(FedMF):
        pass

    reference = METHOD.reference(Mine)
    assert reference.endswith("<locals>.Mine")
    assert "give the method object: fr.Run.load(path, method=...)" in refusal(METHOD, reference)
    assert "was made in an interactive session" in refusal(METHOD, "__main__:Mine")


def test_a_class_of_a_script_is_named_by_its_file(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import federec as fr\nfrom federec.methods.registry import METHOD\nclass Mine(fr.FedMF):\n    pass\n"
        "reference = METHOD.reference(Mine)\nassert METHOD.find(reference) is Mine\nprint(reference)\n"
    )
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd="/")
    assert said.stdout == f"{script}:Mine\n"  # printed once: the script is not run again to find its class


BROKEN = {
    "syntax": ("class Mine(:\n", "line 1: is not valid Python (invalid syntax); mend it there"),
    "null": ("x = 1\0", "cannot be imported (SyntaxError: source code string cannot contain null bytes)"),
    "raises": ("x = 1\n\nraise ValueError('two\\nlines')\n", "line 3: cannot be imported (ValueError: two lines)"),
    "exits": ("import sys\nsys.exit(3)\n", "line 2: cannot be imported (SystemExit: 3)"),
    "needs": ("import nowhere_to_be_found\n", "line 1: needs the module 'nowhere_to_be_found'; install it"),
    "untyped": ("import federec as fr\nclass Mine(fr.FedMF):\n    dim = 3\n", "line 2: cannot be imported (Pydantic"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_imported_says_in_which_line(write, case):
    text, says = BROKEN[case]
    path = write(text)
    said = refusal(METHOD, f"{path}:Mine")
    assert said.startswith(str(path)) and says in said
    assert path.stem not in sys.modules


def test_what_is_not_there_or_is_something_else(write, tmp_path):
    path = write()
    assert refusal(METHOD, "nowhere.py:Mine").endswith("nowhere.py: no such file; check the path")
    assert "cannot be read" in refusal(METHOD, f"{tmp_path}/:Mine")
    assert "has no class 'Mien' - did you mean 'Mine'?" in refusal(METHOD, f"{path}:Mien")
    assert "has no class 'Zzz' (known: Mine, Other)" in refusal(METHOD, f"{path}:Zzz")
    assert f"say which: {path}:Mine, {path}:Other" in refusal(METHOD, str(path))
    assert "helper' is no method; derive the class from federec.DeviceMethod" in refusal(METHOD, f"{path}:helper")
    assert "is no method" in refusal(METHOD, f"{path}:MyPlugin")
    assert "is no plug-in; derive the class from federec.Plugin" in refusal(PLUGIN, f"{path}:Mine")
    assert "has no class 'X'; a method is a class derived from" in refusal(METHOD, "json:X")
    assert "no module 'nopackage'; install its package" in refusal(METHOD, "nopackage.module:Mine")
    assert "no module 'json.nothing'" in refusal(METHOD, "json.nothing:Mine")
    assert "is no method" in refusal(METHOD, int)
    assert "3 is no method; give an object" in refusal(METHOD, 3)


@pytest.fixture
def offer(monkeypatch):
    """Pretend that installed packages register these entry points."""

    def call(**points):
        made = [EntryPoint(name, value, "federec.methods") for name, values in points.items() for value in values]
        monkeypatch.setattr(references, "entry_points", lambda group: made if group == "federec.methods" else [])

    return call


def test_entry_points_are_imported_when_they_are_asked_for(offer, write, monkeypatch):
    good, bad = write(), write("raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(good.parent)
    offer(
        installed=[f"{good.stem}:Mine"],
        broken=[f"{bad.stem}:Mine"],
        lost=[f"{good.stem}:Gone"],
        gone=["nopackage:Mine"],
        twice=["a:Mine", "b:Mine"],
        pfedrec=["a:Impostor"],
    )
    assert {*METHOD.offered()} == {"installed", "broken", "lost", "gone", "twice"} and good.stem not in sys.modules
    assert method_class("installed").__module__ == good.stem
    assert method_class("pfedrec") is METHODS["pfedrec"]  # federec's own come first
    said = refusal(METHOD, "broken")
    assert said.startswith(f"the method 'broken' of the package {bad.stem}") and "ValueError: broken" in said
    assert "no module 'nopackage'" in refusal(METHOD, "gone")
    assert "has no 'Gone'" in refusal(METHOD, "lost")
    assert "several packages register the method 'twice'; say which: a:Mine or b:Mine" in refusal(METHOD, "twice")
    assert "unknown method 'instaled' - did you mean 'installed'?" in refusal(METHOD, "instaled")


def test_a_device_runs_only_what_it_was_told_to_trust(write, tmp_path, monkeypatch):
    marker = tmp_path / "imported"
    mine, other = write(), write(MINE + f"open({str(marker)!r}, 'w')\n")
    sha256 = digest(method_class(f"{mine}:Mine"))
    assert trusted_method("pfedrec") == "pfedrec" and trusted_plugin("dualper") == "dualper"
    # The server has the file elsewhere; the device follows its own reference.
    assert trusted_method("/server/mine.py:Mine", sha256, [f"{mine}:Mine"]) == f"{mine}:Mine"
    for reference, content, own in (
        (f"{other}:Mine", sha256, [f"{mine}:Other"]),  # another class
        ("/server/mine.py:Mine", "0" * 64, [f"{mine}:Mine"]),  # another content
        ("/server/mine.py:Mine", None, [f"{mine}:Mine"]),  # the server does not say which
        (f"{other}:Mine", sha256, []),
        ("os:system", None, None),
    ):
        with pytest.raises(UserError, match="this device does not run the method"):
            trusted_method(reference, content, own)
    assert not marker.exists()  # never imported because a server named it
    monkeypatch.setenv("FEDEREC_METHODS", f" {mine}:MyPlugin, {mine}:Mine ,gone.py:X")
    assert trusted_method("x.py:Mine", sha256) == f"{mine}:Mine"
    assert trusted_plugin("x.py:MyPlugin", sha256) == f"{mine}:MyPlugin"


def test_what_method_authors_need_is_exported():
    assert issubclass(fr.FedMF, fr.DeviceMethod) and issubclass(fr.EASE, fr.CentralMethod)
