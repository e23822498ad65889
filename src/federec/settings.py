"""Typed settings: of methods, plug-ins, stages, aggregators and runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from federec.errors import UserError, did_you_mean, first_fault


class Settings(BaseModel):
    """Every field has a default, a docstring and bounds; unknown names and values that are no numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def described(cls) -> dict[str, str]:
        """The docstrings of the settings by name, read from the source when they are asked for: pydantic would read
        them whenever a class is made, which takes a third of the time in which a device starts."""
        found: dict[str, str] = {}
        for class_ in reversed(cls.__mro__):
            if issubclass(class_, Settings):
                found |= _attribute_docstrings(class_)
        return {name: found[name] for name in cls.model_fields if name in found}


class Part(Settings):
    """A part of a run that users make themselves: a method, a plug-in, a stage. A setting that it refuses is named in
    one line."""

    if not TYPE_CHECKING:  # type checkers read the names and types of the settings from the fields

        def __new__(cls, *given: Any, **values: Any) -> Any:
            if given:
                first = next(iter(cls.model_fields), None)
                remedy = (
                    f"settings are given by name, such as {cls.__name__}({first}=...)"
                    if first
                    else "it has no settings"
                )
                raise UserError(f"{cls.called()}, {given[0]!r:.80}: {remedy}")
            return super().__new__(cls)

        def __init__(self, /, **values: Any) -> None:
            known = type(self).model_fields
            for key in values:
                if key not in known:
                    remedy = did_you_mean(key, known) if known else "; it has none"
                    raise UserError(f"{self.called()} has no setting '{key}'{remedy}")
            try:
                super().__init__(**values)
            except ValidationError as error:
                setting, why = first_fault(error)
                raise UserError(f"setting {setting} of {self.called()}: {why}") from None

        def __setattr__(self, name: str, value: Any) -> None:
            if name in type(self).model_fields:
                raise UserError(f"the settings of {self.called()} are fixed; make a new one with {name}={value!r}")
            super().__setattr__(name, value)

    @classmethod
    def called(cls) -> str:
        """What it is called in an error."""
        return f"'{cls.__name__}'"


def _attribute_docstrings(class_: type) -> dict[str, str]:
    """The string under each attribute of a class; nothing where its source is not known."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(class_))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # made in a session, or by a program
        return {}
    lines = body.body if isinstance(body, ast.ClassDef) else []
    found = {}
    for line, after in pairwise(lines):
        match line, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found


def named(text: str, what: str) -> tuple[str, dict[str, str]]:
    """The name and the settings of a part, written as on the command line: `dense`, `clip:norm=1`. `what` it is."""
    name, _, settings = text.partition(":")
    values = {}
    for pair in settings.split(",") if settings.strip() else ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{what} '{text}': write it as NAME or NAME:KEY=VALUE,KEY=VALUE")
        values[key.strip()] = value
    return name.strip(), values


def parsed(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """The name of a part and its settings as plain values."""
    import yaml

    name, settings = named(text, what)
    try:
        return name, {key: yaml.safe_load(value) for key, value in settings.items()}
    except yaml.YAMLError:
        raise UserError(f"{what} '{text}': a value is neither a number nor a word") from None


def written(name: str, part: Part | None) -> str:
    """The text that names a part with all its settings, as on the command line."""
    values = part.model_dump(mode="json", exclude_none=True) if part is not None else {}
    return ":".join(filter(None, [name, ",".join(f"{key}={value}" for key, value in values.items())]))
