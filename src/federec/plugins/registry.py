"""federec's own plug-ins by name, the class of any other by its reference, and building a method from references and
settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from federec.errors import several
from federec.lazy import Registry
from federec.methods.base import Method
from federec.methods.references import Kind
from federec.methods.registry import METHOD, METHODS, method_class
from federec.plugins.base import Plugin, parts, plug
from federec.settings import Part, Settings

Given = str | type[Plugin] | Plugin
"""A plug-in as users give it: its name or another reference, its class, or an object."""
Plugins = Given | Iterable[Given]

PLUGINS: Registry[type[Plugin]] = Registry(
    "federec.plugins", {"dualper": "DualPer", "sam": "SAM", "plgc": "PLGC", "ldp": "LDP", "recency": "Recency"}
)


PLUGIN = Kind("plug-in", Plugin, "federec.Plugin", ("federec.plugins",), PLUGINS)


@cache
def either() -> Kind[Settings]:
    """Methods and plug-ins together."""
    groups = (*METHOD.groups, *PLUGIN.groups)
    derive = "federec.DeviceMethod or federec.Plugin"
    return Kind("method or plug-in", Settings, derive, groups, {**METHODS, **PLUGINS})


def plugin_class(reference: str | type[Plugin]) -> type[Plugin]:
    """The plug-in that a reference names: a name, `path/to/mine.py:Mine` or `package.module:Mine`."""
    return PLUGIN.find(reference)


def trusted_plugin(reference: str, sha256: str | None = None, own: Iterable[str] | None = None) -> str:
    """The reference that a device follows when a server asks for that plug-in; see `Kind.trusted`."""
    return PLUGIN.trusted(reference, sha256, own)


def build(
    method: str | type[Method],
    plugins: Iterable[str | type[Plugin]] = (),
    settings: Mapping[str, Any] | None = None,
) -> Method:
    """A method with plug-ins and settings, checked before anything is trained."""
    class_ = plug(method_class(method), *map(plugin_class, plugins))
    return class_(**{str(key): value for key, value in (settings or {}).items()})


def with_plugins(method: Method, plugins: Plugins) -> Method:
    """The method, with its settings, under one or several plug-ins: with their own settings, or with defaults."""
    for plugin in several(plugins, "plugins", "give plug-ins, such as [fr.SAM()] or ['sam']", (str, type, Part)):
        if isinstance(plugin, Part):
            method = method | plugin
        else:
            method = plug(type(method), plugin_class(plugin))(**dict(method))
    return method


def references(method: Method) -> tuple[str, tuple[str, ...]]:
    """How to name the class of a method, and its plug-ins."""
    class_, plugins = parts(type(method))
    return METHOD.reference(class_), tuple(map(PLUGIN.reference, plugins))
