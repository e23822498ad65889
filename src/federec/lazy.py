"""What is imported when it is first used, so that a device needs neither torch nor the methods that it does not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from federec.errors import needs

T = TypeVar("T")


class _Module(ModuleType):
    """Stands for a module of an extra; where that is not installed, the first use says so in one line."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # whoever looks at a module from outside must not load it
            raise AttributeError(name)
        value = getattr(needs(self.__name__), name)
        setattr(self, name, value)  # from now on as quick as the module itself
        return value


if TYPE_CHECKING:
    import torch as torch
else:
    torch = _Module("torch")


class Registry(MutableMapping[str, T]):
    """Classes of a package by name, each imported when it is asked for. A class is in the module of its own name, with
    `_` for `-`, unless its entry says where: `krum:MultiKrum`. Others may be added."""

    def __init__(self, package: str, classes: Mapping[str, str]) -> None:
        self.package = package
        self.classes: dict[str, str | T] = dict(classes)

    def __getitem__(self, name: str) -> T:
        entry = self.classes[name]
        if not isinstance(entry, str):
            return entry
        module, _, class_ = entry.rpartition(":")
        found: T = getattr(import_module(f"{self.package}.{module or name.replace('-', '_')}"), class_)
        return found

    def __setitem__(self, name: str, class_: T) -> None:
        self.classes[name] = class_

    def __delitem__(self, name: str) -> None:
        del self.classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self.classes

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    def __len__(self) -> int:
        return len(self.classes)
