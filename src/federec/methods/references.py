"""References: texts that name a class, wherever it lives, and that a run folder can keep.

    pfedrec                  a name that federec registers
    mine                     a name that an installed package registers as an entry point
    path/to/mine.py:Mine     a class in a file
    package.module:Mine      a class in a module that can be imported

`Kind.find` makes a class of a reference, `Kind.reference` a reference of a class.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator

from federec.errors import UserError, did_you_mean
from federec.methods.importing import by_import, digest, from_file, lasting, source

T = TypeVar("T")

TRUSTED = "FEDEREC_METHODS"
"""Environment variable of a device: references, separated by commas, of what its server may ask it to run."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of class that references name: methods, or plug-ins."""

    word: str
    """What it is called."""
    base: type[T]
    derive: str
    """What to derive from, for whoever writes one."""
    groups: tuple[str, ...]
    """Entry point groups by which packages offer them."""
    registered: Mapping[str, type[T]]
    """Those of federec itself, by name."""

    def find(self, reference: str | type[T]) -> type[T]:
        """The class that a reference names. A class stands for itself."""
        if isinstance(reference, type):
            return self._checked(reference, reference.__qualname__)
        if isinstance(reference, UnionType):
            raise UserError(f"{reference}: make objects of the classes first, as in FedMF() | DualPer()")
        if not isinstance(reference, str):
            raise UserError(f"{reference!r:.80} is no {self.word}; give an object or a class of one, or a reference")
        if reference in self.registered:
            return self.registered[reference]
        home, colon, name = reference.rpartition(":")
        if not colon:
            return self._by_name(reference)
        if "<" in name or home == "__main__":
            raise UserError(
                f"'{reference}' was made in an interactive session or inside a function, so it cannot be found again; "
                "give the method object: fr.Run.load(path, method=...) or fr.resume(path, method=...)"
            )
        module = from_file(Path(home)) if _is_path(home) else by_import(home)
        thing = _inside(module, name)
        if thing is None:
            known = self._inside(module)
            remedy = did_you_mean(name, known) if known else f"; a {self.word} is a class derived from {self.derive}"
            raise UserError(f"{home}: has no class '{name}'{remedy}")
        return self._checked(thing, reference)

    def reference(self, class_: type[T]) -> str:
        """How to name the class, so that another process finds it. Its identity counts, not what it calls itself."""
        for name, known in self.registered.items():
            if known is class_:
                return name
        module, name = sys.modules.get(class_.__module__), class_.__qualname__
        path = source(class_)
        if module is None or path is None:
            return f"{class_.__module__}:{name}"
        if _inside(module, name) is not class_:  # made in a function, or another class has taken its name since
            return f"{class_.__module__}:{name if '<' in name else f'<replaced>.{name}'}"
        return f"{class_.__module__ if lasting(module, path) else path}:{name}"

    def offered(self) -> dict[str, list[EntryPoint]]:
        """What installed packages register, by name; nothing is imported."""
        found: dict[str, list[EntryPoint]] = {}
        for group in self.groups:
            for point in entry_points(group=group):
                found.setdefault(point.name, []).append(point)
        return {name: points for name, points in sorted(found.items()) if name not in self.registered}

    def trusted(self, reference: str, sha256: str | None, own: Iterable[str] | None = None) -> str:
        """What a device runs when a server asks for `reference`, whose file has that SHA-256: the same, where it is a
        registered name, or one of the device's own references (by default those in FEDEREC_METHODS) whose class has
        the same name and whose file the same content. Nothing is ever imported because a server names it."""
        if reference in self.registered:
            return reference
        own = os.environ.get(TRUSTED, "").split(",") if own is None else own
        asked = reference.rpartition(":")[2]
        for mine in filter(None, map(str.strip, own)):
            try:
                class_ = self.find(mine)
            except UserError:  # a plug-in, where methods are looked for; or a file that is no longer there
                continue
            if asked in (class_.__qualname__, mine) and sha256 and sha256 == digest(class_):
                return absolute(mine)
        raise UserError(
            f"this device does not run the {self.word} '{asked}' that the server asks for; if you trust it, get its "
            f"file from somebody you trust, and join with --method path/to/file.py:{asked}, or set {TRUSTED} to that"
        )

    def _by_name(self, name: str) -> type[T]:
        offered = self.offered()
        if name not in offered:
            if _is_path(name):
                known = self._inside(from_file(Path(name)))
                words = f"say which: {', '.join(f'{name}:{each}' for each in known)}" if known else "it has none"
                raise UserError(f"{name}: is a file, not a {self.word}; {words}")
            raise UserError(f"unknown {self.word} '{name}'{did_you_mean(name, {*self.registered, *offered})}")
        point, *others = offered[name]
        if others:
            choices = " or ".join(each.value for each in (point, *others))
            raise UserError(f"several packages register the {self.word} '{name}'; say which: {choices}")
        try:
            thing = _inside(by_import(point.module), point.attr)
        except UserError as error:
            raise UserError(f"the {self.word} '{name}' of the package {_package(point)}: {error}") from None
        if thing is None:
            raise UserError(f"the {self.word} '{name}': {point.module} has no '{point.attr}'; mend {_package(point)}")
        return self._checked(thing, name)

    def _inside(self, module: ModuleType) -> list[str]:
        """Names of such classes that a module defines."""
        classes = (thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, self.base))
        return [each.__qualname__ for each in classes if each.__module__ == module.__name__]

    def _checked(self, thing: Any, name: str) -> type[T]:
        if isinstance(thing, type) and issubclass(thing, self.base):
            return thing
        raise UserError(f"'{name}' is no {self.word}; derive the class from {self.derive}")


def absolute(reference: str) -> str:
    """The same reference, good in any directory."""
    home, colon, name = reference.rpartition(":")
    return f"{Path(home).expanduser().absolute()}:{name}" if colon and _is_path(home) else reference


Reference = Annotated[str, AfterValidator(absolute)]
"""A reference among settings."""


def _is_path(home: str) -> bool:
    return home.endswith(".py") or os.sep in home


def _inside(module: ModuleType, name: str) -> Any:
    """What a module calls `name`, which may be `Outer.Inner`; None where there is no such thing."""
    thing: Any = module
    for part in name.split("."):
        thing = getattr(thing, part, None)
    return thing


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module
