"""All checks of one method or plug-in: what `federec check` runs, and the tests of federec and of other packages.

@pytest.mark.parametrize("check", suite("mine.py:Mine"), ids=str)
def test_property(check):
    check.run()
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from federec.checks import runs
from federec.checks.comparing import Broken, random_split, uneven_split
from federec.checks.engines import engines_agree
from federec.checks.rounds import (
    absent_devices,
    chunk_sizes,
    cohort_of_many,
    declared_only,
    private_state,
    repetition,
    started,
)
from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.methods.base import DeviceMethod, Method
from federec.methods.central import CentralMethod
from federec.methods.pooled import PooledMethod
from federec.plugins.base import Plugin
from federec.plugins.registry import build, either
from federec.settings import Settings

HOSTS = ("fedmf", "pfedrec")
"""Methods that a plug-in is put on."""

TOLERANCE = 1e-3
"""Sums in another order round differently, and large steps make that larger."""

_SMALL = {"dim": 4, "batch": 8, "item_lr_factor": 0.2}  # of the hosts: steps that amplify nothing


@dataclass(frozen=True)
class Check:
    """One property of one method."""

    name: str
    run: Callable[[], str]
    """Says what was seen, or raises `Broken` or whatever the method raises."""
    informs: bool = False
    """It cannot fail."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Verdict:
    """What came of a check."""

    check: Check
    passed: bool
    saw: str


def suite(thing: str | type[Settings]) -> list[Check]:
    """The checks of a method or a plug-in, given as a reference or as its class."""
    class_ = either().find(thing)
    if issubclass(class_, Method):
        missing = _missing(class_)
        if missing:
            return [Check("it is complete", partial(_incomplete, missing))]
        try:
            return _method_checks(class_(), class_())
        except UserError as error:
            return [Check("every setting has a default", partial(_incomplete, str(error)))]
    if not issubclass(class_, Plugin):
        raise UserError(f"'{class_.__name__}' is no {either().word}; derive the class from {either().derive}")
    checks, refusals = [], []
    for host in HOSTS:
        try:
            small, usual = build(host, (class_,), _SMALL), build(host, (class_,))
        except UserError as refusal:
            refusals.append(str(refusal))
            continue
        checks += [Check(f"on {host}: {check}", check.run, check.informs) for check in _method_checks(small, usual)]
    if not checks:
        return [Check(f"it fits {' or '.join(HOSTS)}", partial(_incomplete, "; ".join(refusals)))]
    return checks + [Check("fits", partial(str, refusal), informs=True) for refusal in refusals]


def verdict(check: Check) -> Verdict:
    """Run a check; whatever the method raises is a failure of the method."""
    try:
        return Verdict(check, True, check.run())
    except Broken as broken:
        return Verdict(check, check.informs, str(broken))
    except Exception as error:
        return Verdict(check, check.informs, _told(error))


def _missing(class_: type[Method]) -> str:
    """What a class must have and has not."""
    needed: list[tuple[str, str, type[Method]]] = []
    if issubclass(class_, DeviceMethod):
        needed.append(("score", "how a device scores", DeviceMethod))
        if class_.fit is DeviceMethod.fit:
            needed.append(("step", "what a device does with a batch", DeviceMethod))
    if issubclass(class_, CentralMethod):
        needed.append(("scores", "the scores of all items", CentralMethod))
        if class_.learn is CentralMethod.learn:
            needed.append(("refine", "the model of a round", CentralMethod))
    if issubclass(class_, PooledMethod):
        needed.append(("user_params", "tables with a row for each user", PooledMethod))
        needed.append(("item_params", "tables with a row for each item", PooledMethod))
        if class_.loss is PooledMethod.loss:
            needed.append(("score", "how a sample scores", PooledMethod))
    lacking = [f"`{name}` ({what})" for name, what, base in needed if getattr(class_, name) is getattr(base, name)]
    return f"{class_.__name__} has no {' and no '.join(lacking)}" if lacking else ""


def _incomplete(words: str) -> str:
    raise Broken(words)


def _method_checks(method: Method, usual: Method) -> list[Check]:
    """`usual` is the method with its usual settings, to see what it learns."""
    checks = [Check("its settings can be kept in files", partial(runs.settings_survive, method))]
    if isinstance(method, DeviceMethod):
        checks += _device_checks(method)
    if isinstance(method, CentralMethod):
        checks.append(
            Check("a user's scores are its own", lambda: runs.scores_are_each_users_own(method, random_split()))
        )
    checks += [
        Check("protocol clean", lambda: runs.reviews_repeat(method, random_split(), "clean")),
        Check("protocol paper", lambda: runs.reviews_repeat(method, random_split(), "paper", 0.5)),
        Check("stopped and resumed", partial(_resumed, method)),
        Check("it learns", partial(runs.learns, usual), informs=True),
    ]
    return checks


def _in_batches(method: DeviceMethod) -> DeviceMethod:
    """With batches so small that devices take several steps, and different numbers of them."""
    try:
        return type(method).model_validate(method.model_dump() | {"batch": 8})
    except UserError:  # it wants another size
        return method


def _device_checks(method: DeviceMethod) -> list[Check]:
    method = _in_batches(method)

    few, many = (Devices.of(uneven_split(few_items), close_held_out=few_items) for few_items in (True, False))

    def check(property_: Callable[..., str], devices: Devices, **given: float) -> Callable[[], str]:
        return lambda: property_(method, devices, started(method, devices), **given)

    close = {"tolerance": TOLERANCE}
    return [
        Check("a cohort of N is N cohorts of one", check(cohort_of_many, few, **close)),
        Check("the same with many items", check(cohort_of_many, many, **close)),
        Check("chunk sizes do not matter", check(chunk_sizes, few, **close)),
        Check("only what is declared is sent", partial(declared_only, method, few)),
        Check("private parameters stay private", check(private_state, few, **close)),
        Check("absent devices stay as they are", check(absent_devices, few)),
        Check("a round can be repeated", check(repetition, few)),
        Check("both engines agree", partial(_engines, method)),
    ]


def _engines(method: DeviceMethod) -> str:
    return engines_agree(method, Devices.of(random_split(), False), tolerance=TOLERANCE)


def _resumed(method: Method) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return runs.resumed(method, random_split().data, Path(folder), participation=0.6)


def _told(error: Exception) -> str:
    """An exception in one line, with the line of the file that raised it, outside of federec where there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parents[1])
    others = [
        frame for frame in frames if not frame.filename.startswith(package) and "site-packages" not in frame.filename
    ]
    where = f" ({(others or frames)[-1].filename}, line {(others or frames)[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200] + where
