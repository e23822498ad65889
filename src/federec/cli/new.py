"""`federec new`: a file to start a method or a plug-in from, and its tests."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import typer
from typer import Argument

from federec.errors import UserError
from federec.files import write_atomic

app = typer.Typer(help="Start a method or a plug-in of your own.", no_args_is_help=True)


@app.command("method")
def method(name: str = Argument(..., help="What to call it, such as mine or my-method.")) -> None:
    """Write NAME.py, a method that works, and test_NAME.py.

    Both are written into the current directory.
    """
    file, class_ = _write("method", "NewMethod", name)
    typer.echo(f"check it:  federec check {file}:{class_}\ntrain it:  federec train {file}:{class_} --rounds 20")


@app.command("plugin")
def plugin(name: str = Argument(..., help="What to call it, such as mine or my-plugin.")) -> None:
    """Write NAME.py, a plug-in that works, and test_NAME.py.

    Both are written into the current directory.
    """
    file, class_ = _write("plugin", "NewPlugin", name)
    typer.echo(
        f"check it:  federec check {file}:{class_}\ntrain it:  federec train fedmf --with {file}:{class_} --rounds 20"
    )


def _write(template: str, placeholder: str, name: str) -> tuple[str, str]:
    """The file and the class that were made."""
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise UserError(f"'{name}' cannot be the name of a file and a class; use small letters, digits and hyphens")
    stem, class_ = name.replace("-", "_"), "".join(part.capitalize() for part in re.split("[-_]", name))
    file, test = Path(f"{stem}.py"), Path(f"test_{stem}.py")
    for path in (file, test):
        if path.exists():
            raise UserError(f"{path}: exists already; choose another name")
    if find_spec(stem) is not None:
        raise UserError(f"{file} would hide the module '{stem}' that is installed; choose another name")
    texts = {file: f"{template}.py", test: "test.py"}
    for path, source in texts.items():
        text = (files("federec.checks") / "templates" / source).read_text(encoding="utf-8")
        write_atomic(path, text.replace(placeholder, class_).replace("NewMethod", class_).replace("FILE", str(file)))
        typer.echo(f"wrote {path}")
    return str(file), class_
