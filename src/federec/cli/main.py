"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import io
import os
import sys
import warnings

import click
import typer

from federec.cli import (
    check,
    compare,
    data,
    device,
    doctor,
    federation,
    methods,
    new,
    recommend,
    reproduce,
    train,
    tune,
)
from federec.errors import UserError

typer.core.HAS_RICH = False  # plain help is quicker; besides, typer shows rich's escapes where rich does not print

app = typer.Typer(
    name="federec",
    help="Recommenders trained where the data lives: on each user's own device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("recommend")(recommend.recommend)
app.command("methods")(methods.methods)
app.command("check")(check.check)
app.add_typer(new.app, name="new")
app.command("reproduce")(reproduce.reproduce)
app.command("tune")(tune.tune)
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
        False, "--version", callback=_version, is_eager=True, help="Say the version and stop."
    ),
) -> None:
    """Recommenders trained where the data lives: on each user's own device."""


def run() -> None:
    """The `federec` command: what the user can mend is one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an id that the terminal's encoding lacks is no reason to stop
    warnings.formatwarning = _one_line
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "federec"
        sys.exit(_refuse(f"{error.format_message().rstrip('.')}; see: {command} --help"))
    except click.Abort:  # a question was answered by no, or by nobody
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
    except BrokenPipeError:  # the reader of our output, `head` say, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(_refuse(f"{place}{error.strerror or error}; check the path, the disk and who may use them"))
    except MemoryError:
        sys.exit(_refuse(_NO_MEMORY))
    except (RuntimeError, TypeError) as error:  # torch cannot allocate, or cannot even count so far
        if not any(word in str(error).lower() for word in ("memory", "overflow")):
            raise
        sys.exit(_refuse(_NO_MEMORY))


_NO_MEMORY = "not enough memory; use fewer users, a smaller dim, or a larger machine"


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"


def _refuse(text: str) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return 2
