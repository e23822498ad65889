"""The settings of a federation, beside those of the run: who takes part, how long they have, how updates travel.

A federation's folder is a run folder (`config.yaml`, `rounds.jsonl`, `model/`, `result.json`, `report.html`), with
    federation.json   these settings
    catalogue.json    the items; new ones may be added at its end between rounds
    events.jsonl      what the server did
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from federec.cohort.layers import USERS
from federec.errors import UserError, did_you_mean, first_fault
from federec.evaluation.metrics import metric_of
from federec.evaluation.protocols import protocol
from federec.federation.channel import Link
from federec.files import read_bytes, write_atomic
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.policy import COHORT, SECURE, check_secure, smallest_cohort
from federec.runs.budget import resolved
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.settings import Settings

FILE, CATALOGUE, EVENTS = "federation.json", "catalogue.json", "events.jsonl"

_STAGES = {
    "rows": "--stage dense or --stage secure-sum",
    "clip": "--stage clip:norm=1",
    "noise": "--stage laplace or --stage gaussian",
    "scale": "--stage gaussian:scale=0.1",
    "secure": "--stage secure-sum",
    "most": "--stage secure-sum:most=64",
}
"""Settings that are stages of the channel."""


class FederationSettings(Settings):
    """`federation.json`."""

    run: str = Field(default_factory=lambda: secrets.token_hex(8))
    """Name of the run on the devices; a server that continues the run has the same."""
    minimum: PositiveInt | None = None
    """Fewest nodes that a round needs. None: 1, and as many as a device hides among where the channel hides it."""
    target: PositiveInt | None = None
    """Nodes that a round asks, of those that are there. None: the run's `participation`."""
    expected: PositiveInt = 1
    """Nodes that the server waits for before its first round, though no longer than a round may take."""
    deadline: PositiveFloat = 120.0
    """Seconds that nodes have to answer."""
    grace: PositiveFloat = 3.0
    """Seconds that the rest has when two thirds and the minimum have answered; or as long as those took, if longer."""
    patience: PositiveFloat = 600.0
    """Seconds to wait for the fewest nodes."""
    most_users: PositiveInt = 100_000
    """Users that one node may speak for; an update for more is refused."""
    counted: PositiveInt = 100
    """Devices that a mean counts at least. Methods' steps are chosen for hundreds of devices; where fewer take part,
    those that are missing count as devices that changed nothing."""
    most_norm: PositiveFloat | None = None
    """Largest norm of an update for each user in it. Besides, what is far beyond the usual norm is always refused."""
    metrics_host: str = "127.0.0.1"
    """Where Prometheus may ask."""
    metrics_port: Annotated[int, Field(ge=0, lt=65536)] | None = None
    """0: any free port, named in the log; None: nowhere."""
    record: bool = False
    """Keep all that the server receives in `received/`, so that it can be searched."""
    sizes: tuple[NonNegativeInt, ...] = ()
    """Numbers of items of the catalogue, from the beginning to now."""

    @staticmethod
    def checked(**values: Any) -> FederationSettings:
        """From plain values, with the first fault in one line."""
        known = set(FederationSettings.model_fields) - {"run", "sizes"}
        for key in values.keys() - known:
            if key in _STAGES:
                raise UserError(f"'{key}' is no setting of the network; say it as a stage: {_STAGES[key]}")
            raise UserError(f"a federation has no setting '{key}'{did_you_mean(key, known)}")
        try:
            return FederationSettings(**values)
        except ValidationError as error:
            raise UserError(": ".join(first_fault(error))) from None

    @staticmethod
    def read(path: Path) -> FederationSettings:
        if not (path / FILE).is_file():
            raise UserError(f"{path}: is not the folder of a federation (no {FILE})")
        try:
            return FederationSettings.model_validate_json(read_bytes(path / FILE))
        except ValidationError as error:
            raise UserError(f"{path / FILE}: {': '.join(first_fault(error))}") from None

    def write(self, path: Path) -> None:
        write_atomic(path / FILE, self.model_dump_json(indent=2) + "\n")


def check_method(config: RunConfig, settings: FederationSettings) -> tuple[DeviceMethod, Link]:
    """The method and its link to the server. Refused is what cannot work between devices and a server that only sees
    sums, and what would tell which items a node's users have."""
    method = config.build()
    if not isinstance(method, DeviceMethod):
        raise UserError(
            f"'{method.name}' sees everybody's history in one place; a federation needs a method of devices"
        )
    if any(USERS in param.shape for param in method.shared().values()):
        raise UserError(
            f"the server of '{method.name}' works on every device's own message; a federation's server only sees sums"
        )
    link = config.link(method)
    if link.attack is not None:
        raise UserError(f"attack '{link.attack.name}' is one of simulated devices; try it with: federec train")
    check_secure(method, link.channel)
    if "secure-sum" in link.channel and settings.minimum is not None and settings.minimum < 2:
        raise UserError("'secure-sum' hides a node among others: set minimum to 2 or more")
    return method, link


def unsampled(config: RunConfig) -> RunConfig:
    """The configuration as a privacy account has to read it: a federation's server knows who takes part, so nobody is
    hidden by chance."""
    return config.model_copy(update={"participation": 1.0})


def prepare(path: Path, config: RunConfig, settings: FederationSettings, catalogue: Catalogue) -> None:
    """A new federation's folder. Where the configuration names no channel, devices only send under `secure-sum`."""
    rule = config.split or ("given" if config.held_out or "split" in config.columns else "leave-one-out")
    if rule != "leave-one-out":
        only = "a federation's devices hold out their own two newest items"
        raise UserError(f"split '{rule}': {only}; use --split leave-one-out")
    if config.channel is None:
        config = config.model_copy(update={"channel": SECURE})
    cohort = smallest_cohort(settings.expected) if settings.expected > 1 else COHORT
    hides = any(values.get("stage") == "secure-sum" for values in config.channel or ())
    minimum = settings.minimum or (cohort if hides else 1)
    channel = resolved(unsampled(config), config.build(), minimum, len(catalogue)).channel
    config = config.model_copy(update={"channel": channel})
    method, link = check_method(config, settings)
    kind, metric = metric_of(config.select or protocol(config.protocol).select)
    partial = not link.channel.fetches_all and any(param.rows for param in method.shared().values())
    if kind == "full" and partial:
        # Devices that only fetch the rows they need cannot rank all items in every round.
        config = config.model_copy(update={"select": f"sampled.{metric}"})
    RunFolder(path).create(config)
    path.chmod(0o700)  # updates, keys and logs are nobody else's business
    settings.model_copy(update={"minimum": minimum, "sizes": (len(catalogue),)}).write(path)
    write_atomic(path / CATALOGUE, catalogue.text())
