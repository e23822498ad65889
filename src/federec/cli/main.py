"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings

import click
import typer

from federec.cli import (
    audit,
    check,
    compare,
    data,
    device,
    doctor,
    evaluate,
    export,
    federation,
    figure,
    methods,
    new,
    privacy,
    recommend,
    report,
    reproduce,
    serve,
    train,
    tune,
    web,
)
from federec.errors import UserError

typer.core.HAS_RICH = False  # plain help is quicker, and typer's rich help shows escapes such as \[ to the reader

app = typer.Typer(
    name="federec",
    help="Recommenders trained where the data lives: on each user's own device.",
    no_args_is_help=True,
    suggest_commands=not hasattr(click.exceptions, "NoSuchCommand"),  # from 8.4 on click suggests commands itself
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("recommend")(recommend.recommend)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("web")(web.web)
app.command("audit")(audit.audit)
app.command("methods")(methods.methods)
app.command("check")(check.check)
app.add_typer(new.app, name="new")
app.command("reproduce")(reproduce.reproduce)
app.command("figure")(figure.figure)
app.command("tune")(tune.tune)
app.add_typer(privacy.app, name="privacy")
app.add_typer(data.app, name="data")
app.add_typer(device.app, name="device")
app.add_typer(federation.app, name="federation")
app.command("doctor")(doctor.doctor)


def _version(asked: bool) -> None:
    if asked:
        import federec

        typer.echo(f"federec {federec.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Recommenders trained where the data lives: on each user's own device."""


def run() -> None:
    """The `federec` command. A mistake that the user can correct is reported in one line, with exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print `?` for what the terminal cannot show
    warnings.formatwarning = _one_line
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "federec"
        words = error.format_message().rstrip(".")
        sys.exit(_refuse(f"{words}{' See' if words.endswith('?') else '; see'}: {command} --help"))
    except click.Abort:  # the user answered no, or closed the input
        print("\nstopped; nothing was done", file=sys.stderr)
        sys.exit(1)
    except UserError as error:
        sys.exit(_refuse(str(error)))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in doctor.EXTRAS:
            raise
        extra = doctor.EXTRAS[package]
        sys.exit(_refuse(f"this needs the package {package}; install it with: pip install 'federec[{extra}]'"))
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        sys.exit(_refuse(f"{path}{error.strerror or error}; check the path, the disk and the permissions"))
    except Exception as error:
        if not _allocation_failed(error):
            raise
        sys.exit(_refuse("not enough memory; use fewer users, a smaller dim, or a larger machine"))


_ALLOCATION_FAILED = re.compile(
    "DefaultCPUAllocator: (can't allocate|not enough) memory"
    "|CUDA error: out of memory"
    "|Storage size calculation overflowed"  # more bytes than 64 bits can count
    "|argument 'size' .*Overflow when unpacking long"  # a dimension that does not fit into 64 bits
)
"""What torch says when it cannot allocate, where it has no exception of its own for that."""


def _allocation_failed(error: Exception) -> bool:
    torch = sys.modules.get("torch")  # if torch was never loaded, the error is not from torch
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError | TypeError) and bool(_ALLOCATION_FAILED.search(str(error)))


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"


def _refuse(text: str) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return 2
