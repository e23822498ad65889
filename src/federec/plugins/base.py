"""Plug-ins: something that changes any method.

A plug-in is a mix-in: `plug(FedMF, DualPer)` is the class `FedMF` with the plug-in's methods laid over it, so
`super()` inside a plug-in is the method below, and settings of both are settings of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from federec.errors import UserError
from federec.methods.base import DeviceMethod, Method, hyphenated
from federec.methods.forms import Form
from federec.settings import Part

if TYPE_CHECKING:
    _Below = DeviceMethod  # what `super()` is, once a plug-in lies over a method
else:
    _Below = Part  # a plug-in brings its own settings only, never the defaults of a method


class Plugin(_Below):
    """Overrides parts of whatever device method lies below it. An object by itself holds only the plug-in's settings:
    `|` puts it on a method.

    >>> class Halved(fr.Plugin):
    ...     def descend(self, step, rates):
    ...         super().descend(step, {name: rate / 2 for name, rate in rates.items()})
    >>> run = fr.train(fr.FedMF(dim=8) | Halved(), data, rounds=1)
    """

    plugin: ClassVar[str]
    """What it is called. By default made of the name of the class: DualPer would be `dual-per`."""
    changes_steps: ClassVar[bool] = True
    """It changes how devices step down a gradient, so it does not fit a method that solves in closed form."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "plugin" not in vars(cls):
            cls.plugin = hyphenated(cls.__name__)

    @classmethod
    def called(cls) -> str:
        return f"'{cls.name}'" if issubclass(cls, Method) else f"plug-in '{cls.plugin}'"

    def __ror__(self, method: object) -> Method:
        """The method with this plug-in on it."""
        if not isinstance(method, Method):
            raise UserError(f"{method!r:.80} is no method; put plug-ins on an object of one: fr.FedMF() | fr.SAM()")
        if _PLUGGED in vars(type(self)):
            raise UserError(f"{self!r:.80} is a method, not a plug-in; put plug-ins on it one by one, from the left")
        return plug(type(method), type(self))(**dict(method), **dict(self))

    def __repr__(self) -> str:
        """As it is written in Python: `FedMF(dim=32, ...) | SAM(rho_shared=0.02, rho_private=0.02)`."""
        shown = []
        class_, plugins = parts(type(self))
        for part in (class_, *plugins):
            settings = ", ".join(f"{key}={getattr(self, key)!r}" for key in part.model_fields)
            shown.append(f"{part.__name__}({settings})")
        return " | ".join(shown)

    def fuse(self, form: Form) -> Form | None:
        """The fused form of the method below, as the plug-in changes it; None, the default, where no kernel plays that.
        Say what becomes of each form that the plug-in knows, and None of all others: a form may be new."""
        return None


def plug(method: type[Method], *plugins: type[Plugin]) -> type[Method]:
    """The method class with plug-ins laid over it, the last one outermost."""
    for plugin in plugins:
        method = _laid(method, plugin)
    return method


@cache  # so that methods with the same plug-ins and settings are equal
def _laid(method: type[Method], plugin: type[Plugin]) -> type[Method]:
    """The method class with one plug-in laid over it."""
    if not issubclass(method, DeviceMethod):
        raise UserError(f"plug-in '{plugin.plugin}' does not fit '{method.name}': it is not trained on devices")
    if plugin.changes_steps and method.closed_form:
        reason = "its devices solve in closed form and take no steps"
        raise UserError(f"plug-in '{plugin.plugin}' does not fit '{method.name}': {reason}")
    if plugin.plugin in method.refuses:
        raise UserError(f"plug-in '{plugin.plugin}' does not fit '{method.name}': {method.refuses[plugin.plugin]}")
    if plugin.plugin in method.plugins:
        raise UserError(f"plug-in '{plugin.plugin}' is given twice")
    if clash := sorted({*plugin.model_fields} & {*method.model_fields}):
        raise UserError(f"plug-in '{plugin.plugin}' does not fit '{method.name}': both have a setting '{clash[0]}'")
    members = {
        _PLUGGED: True,
        "name": method.name,
        "plugin": plugin.plugin,
        "plugins": (*method.plugins, plugin.plugin),
        "__module__": __name__,
        "__doc__": method.__doc__,
        "__annotations__": {"plugins": ClassVar[tuple[str, ...]]},
        "fused_form": _fused_form(plugin, method),
    }
    return type(f"{plugin.__name__}{method.__name__}", (plugin, method), members)


_PLUGGED = "__plugged__"  # marks a class that `plug` made


def parts(method: type[Method]) -> tuple[type[Method], tuple[type[Plugin], ...]]:
    """What `plug` made the class of: the method below, and the plug-ins in the order they were put on."""
    plugins: tuple[type[Plugin], ...] = ()
    while _PLUGGED in vars(method):
        plugin, method = method.__bases__
        plugins = (plugin, *plugins)
    return method, plugins


def _fused_form(plugin: type[Plugin], below: type[DeviceMethod]) -> Callable[[DeviceMethod, int], Form | None]:
    """`fused_form` of a plug-in laid over a method. Not by `super()`, which passes over a plug-in that says nothing."""

    def fused_form(self: DeviceMethod, n_items: int) -> Form | None:
        form = below.fused_form(self, n_items)
        return None if form is None else plugin.fuse(cast(Plugin, self), form)

    return fused_form


def without_form(method: DeviceMethod, n_items: int) -> str:
    """Which part of a method without a fused form is the cause, in words."""
    part, below = type(method), _below(type(method))
    while below is not None and below.fused_form(method, n_items) is None:
        part, below = below, _below(below)
    if below is not None:
        return f"no kernel plays plug-in '{part.plugins[-1]}' on {'+'.join((method.name, *below.plugins))}"
    known = part.fused_form is not DeviceMethod.fused_form
    return f"no kernel plays '{method.name}'" + (" with these settings" if known else "")


def _below(method: type[DeviceMethod]) -> type[DeviceMethod] | None:
    """The class that the outermost plug-in of a method lies over; None where there is none."""
    return cast(type[DeviceMethod], method.__bases__[1]) if method.plugins else None
