"""For the pages of methods and plug-ins: a marker becomes what the code and the records say, so that nothing is typed.

<!-- overview -->             every method trained on devices, and what it shares, keeps and sends
<!-- traffic: NAME -->        what a method shares, keeps and sends
<!-- settings: NAME -->       settings with defaults and bounds, presets, and what it can be combined with
<!-- results: NAME -->        verdicts and figures of the tuned runs
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

from federec.errors import UserError
from federec.methods.base import DeviceMethod, Method
from federec.methods.presets import presets
from federec.methods.registry import METHODS, method_class
from federec.plugins.base import Plugin, plug
from federec.plugins.registry import PLUGINS, either
from federec.reporting.tables import method_row
from federec.reproduction.claims import listed
from federec.reproduction.outcomes import Measured, measured, outcome, sent
from federec.reproduction.records import Book
from federec.reproduction.tables import markdown

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
MARKER = re.compile(r"^<!-- (overview|traffic|settings|results)(?:: (\S+))? -->$", re.M)


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """What mkdocs calls for every page."""
    try:
        return filled(text)
    except UserError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from None


def filled(text: str) -> str:
    """The text with every marker replaced."""
    return MARKER.sub(lambda found: overview() if found[1] == "overview" else MAKERS[found[1]](found[2] or ""), text)


@cache
def known() -> Measured:
    """The tuned runs, read once in a build."""
    return measured(Book(RESULTS / "records"))


def overview() -> str:
    """A table of all methods that are trained on devices."""
    lines = []
    for method in METHODS.values():
        if issubclass(method, DeviceMethod):
            row, sums = method_row(method), "no" if method().opens_updates else "yes"
            told = [row[column] for column in ("sent", "kept", "shared", "private")]
            lines.append([f"[`{method.name}`]({page_of(method.name)})", sums, *told])
    heads = ["method", "sums are enough", "a device sends in a round", "a device keeps", "shared", "private"]
    return markdown(heads, lines)


def page_of(name: str) -> str:
    """Where a method or plug-in is described, seen from a page of methods."""
    if name == "fednext-projected":
        return f"fednext.md#{name}"
    return f"{name}.md" if (DOCS / "methods" / f"{name}.md").is_file() else f"references.md#{name}"


_SUMS = "**The server needs** only sums over devices, so [secure aggregation](../secure-aggregation.md) fits."
_SINGLE = (
    "**The server needs** each device's own update, so [secure aggregation](../secure-aggregation.md) cannot hide it."
)


def traffic(name: str) -> str:
    """A list: what is shared and private, what a device keeps and sends, what the server must see."""
    method = method_class(name)
    if not issubclass(method, DeviceMethod):
        raise UserError(f"'{name}' is not trained on devices: nothing travels")
    row, lines = method_row(method), list[str]()
    lines += [f"**Shared**, held by the server: {row['shared']}.", f"**Private**, never sent: {row['private']}."]
    touched = " An item is each that the device touched." if " an item" in row["kept"] + row["sent"] else ""
    lines += [f"**A device keeps** {row['kept']} and **sends** {row['sent']} in a round.{touched}"]
    lines += [f"**Measured**: {told}"] if (told := sent(name, known().found)) else []
    lines += [_SINGLE if method().opens_updates else _SUMS] if method().sends() else []
    return "\n".join(f"- {line}" for line in lines)


def settings(name: str) -> str:
    """A list of settings, then the rounds of a run, presets and combinations, in a sentence each."""
    thing = either().find(name)
    fields = thing.model_json_schema()["properties"] if thing.model_fields else {}
    about = thing.described()
    # A class's own settings come first, those that it has from its parents after them.
    declared = dict.fromkeys(field for each in thing.__mro__ for field in vars(each).get("__annotations__", {}))
    order = [field for field in declared if field in fields]
    parts = ["\n".join(setting(field, fields[field], about.get(field, "")) for field in order) or "It has no settings."]
    if issubclass(thing, Method):
        parts += [rounds(thing()), preset_names(name)]
        parts += [fits((other, plug_fault(thing, plugin)) for other, plugin in PLUGINS.items())]
    elif issubclass(thing, Plugin):
        device_methods = (method for method in METHODS.values() if issubclass(method, DeviceMethod))
        parts += [fits((method.name, plug_fault(method, thing)) for method in device_methods)]
    return "\n\n".join(filter(None, parts))


def setting(name: str, schema: dict[str, Any], about: str) -> str:
    """One line of the list."""
    limits = bounds(schema)
    return (
        f"- **`{name}`** = `{written(schema['default'])}`{f', {limits}' if limits else ''}. {' '.join(about.split())}"
    )


def written(value: Any) -> str:
    """A value as one writes it after `--set`."""
    if isinstance(value, float) and value.is_integer():
        return f"{value:g}" if abs(value) < 1e6 else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def bounds(schema: dict[str, Any]) -> str:
    """What values a setting takes, in words."""
    if "const" in schema:
        return "fixed"
    if "enum" in schema:
        return f"one of {', '.join(f'`{written(value)}`' for value in schema['enum'])}"
    if "items" in schema:
        each = bounds(schema["items"])
        return each if each.startswith("each ") or not each else f"each {each}"
    whole = schema.get("type") == "integer"
    least = schema["exclusiveMinimum"] + 1 if whole and "exclusiveMinimum" in schema else schema.get("minimum")
    words = [f"at least {written(least)}"] if least is not None else []
    if not words and "exclusiveMinimum" in schema:
        words = [f"above {written(schema['exclusiveMinimum'])}"]
    words += [f"{word} {written(schema[key])}" for key, word in _MOST.items() if key in schema]
    return " and ".join(words)


_MOST = {"maximum": "at most", "exclusiveMaximum": "below"}


def rounds(method: Method) -> str:
    """How many rounds a run has by default."""
    if method.most_rounds is not None:
        count = f"{method.most_rounds} rounds" if method.most_rounds > 1 else "one round"
        return f"A run has {count} with these settings; more would change nothing."
    share = f"{100 * method.default_participation:.0f} % of the" if method.default_participation < 1 else "all"
    part = f", with {share} devices in each" if isinstance(method, DeviceMethod) else ""
    return f"By default a run has {method.default_rounds} rounds{part}."


def plug_fault(method: type[Method], plugin: type[Plugin]) -> str | None:
    """Why a plug-in does not fit a method; None where it does."""
    try:
        plug(method, plugin)()
    except UserError as error:
        return str(error).partition(": ")[2]
    return None


def fits(tried: Iterable[tuple[str, str | None]]) -> str:
    """What something can be combined with, and with what it cannot, and why."""
    others: dict[str | None, list[str]] = {}
    for other, fault in tried:
        others.setdefault(fault, []).append(f"[`{other}`]({page_of(other)})")
    good = others.pop(None, [])
    sentences = [f"It can be combined with {listed(good)}."] if good else []
    sentences += [f"It does not fit {listed(names)}: {why}." for why, names in others.items()]
    return " ".join(sentences)


def preset_names(name: str) -> str:
    """Presets, by name."""
    names = [f"`{each}`" for each in presets(name)]
    return f"Presets: {listed(names)}. `federec methods {name}` shows what is in them." if names else ""


def results(name: str) -> str:
    """What the tuned runs say."""
    either().find(name)
    return outcome(name, known(), {page.stem for page in RESULTS.glob("*.md")})


MAKERS: dict[str, Callable[[str], str]] = {"traffic": traffic, "settings": settings, "results": results}
