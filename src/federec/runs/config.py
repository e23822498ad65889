"""The resolved settings of a run: everything needed to repeat it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, field_validator

from federec.data.interactions import Interactions
from federec.data.sets import load
from federec.errors import UserError, did_you_mean, first_fault
from federec.evaluation.protocols import protocol
from federec.federation.channel import Link
from federec.files import read_bytes
from federec.methods.base import DeviceMethod, Method
from federec.plugins.registry import build
from federec.settings import Settings
from federec.stages.registry import plain, stage


class RunConfig(Settings):
    """`config.yaml` of a run folder."""

    method: str = "pfedrec"
    """Name of the method."""
    plugins: tuple[str, ...] = ()
    """Plug-ins on it, the last one outermost."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The method's and plug-ins' settings."""
    channel: tuple[dict[str, Any], ...] = ()
    """Stages between a device and the server, in order: `{stage: clip, norm: 1.0}`."""
    aggregator: str | None = None
    """How the server makes one of the devices' updates; the method's default if not given."""
    data: str = "tastes"
    """A named set, a file, or a folder of columns."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Which column of the file is the user, item, rating, timestamp."""
    min_interactions: NonNegativeInt | None = None
    """Leave out users with fewer rows; the set's own filter if not given."""
    k_core: NonNegativeInt | None = None
    """Leave out users and items with fewer partners, until all have k."""
    protocol: str = "clean"
    """`clean` or `paper`."""
    rounds: PositiveInt | None = None
    """How many rounds; the method's default if not given."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of every random number of the run."""
    participation: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the devices that take part in a round; the method's default if not given."""
    evaluate_users: PositiveInt | None = None
    """Evaluate so many users at most, drawn at random; all if not given."""
    device: str = "cpu"
    """Where tensors live: `cpu` or `cuda`."""

    engine: Literal["auto", "torch", "fused"] = "auto"
    """What plays rounds: `torch`, or `fused` kernels where the method has one; `auto` takes the faster."""

    @field_validator("protocol")
    @classmethod
    def _known_protocol(cls, name: str) -> str:
        return protocol(name).name

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
            raise UserError(f"unknown device '{name}'{did_you_mean(name, ('cpu', 'cuda'))}")
        return name

    @staticmethod
    def checked(**values: Any) -> RunConfig:
        """A configuration from values, with the first fault of them in one line."""
        for key in values:
            if key not in RunConfig.model_fields:
                raise UserError(f"a run has no setting '{key}'{did_you_mean(key, RunConfig.model_fields)}")
        try:
            config = RunConfig(**values)
        except ValidationError as error:
            raise UserError(": ".join(first_fault(error))) from None
        method = config.build()
        link = config.link(method) if isinstance(method, DeviceMethod) else None
        if link is None and (config.channel or config.aggregator):
            raise UserError(
                f"'{method.name}' is trained in one place, without a channel; leave out stages and aggregator"
            )
        rounds = config.rounds or method.default_rounds
        return config.model_copy(
            update={
                "settings": method.model_dump(mode="json"),
                "channel": tuple(plain(stage(values)) for values in config.channel),
                "aggregator": link.aggregator.name if link is not None else None,
                "rounds": min(rounds, method.most_rounds or rounds),
                "participation": config.participation or method.default_participation,
            }
        )

    @staticmethod
    def of(method: Method, data: Interactions, **values: Any) -> RunConfig:
        """The configuration of a method at work on loaded data."""
        origin = data.origin or {"data": data.name}
        settings = method.model_dump(mode="json")
        return RunConfig.checked(method=method.name, plugins=method.plugins, settings=settings, **origin, **values)

    @staticmethod
    def read(path: Path) -> RunConfig:
        """From a `config.yaml`."""
        try:
            values = yaml.safe_load(read_bytes(path))
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise UserError(f"{path}{where}: is not valid YAML; repair it or start a new run") from None
        if not isinstance(values, dict):
            raise UserError(f"{path}: holds no settings; name a config.yaml of a run")
        try:
            return RunConfig.checked(**{str(key): value for key, value in values.items()})
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def text(self) -> str:
        """As YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def build(self) -> Method:
        """The method."""
        return build(self.method, self.plugins, self.settings)

    def link(self, method: DeviceMethod) -> Link:
        """What lies between the devices and the server."""
        return Link.of(method, [stage(values) for values in self.channel], self.aggregator)

    def load(self) -> Interactions:
        """The data."""
        return load(self.data, self.columns, self.min_interactions, self.k_core)
