"""The resolved settings of a run: everything needed to repeat it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, field_validator
from pydantic_core import PydanticSerializationError

from federec.data.interactions import Interactions
from federec.data.sets import SETS, Loadable, in_memory, load
from federec.data.split import Split, Ties, make_split, parse_rule
from federec.errors import UserError, did_you_mean, first_fault
from federec.evaluation.metrics import metric_of
from federec.evaluation.protocols import protocol
from federec.federation.channel import Link
from federec.files import read_bytes
from federec.methods.base import DeviceMethod, Method
from federec.methods.importing import digest, source
from federec.methods.references import Reference, absolute
from federec.methods.registry import trusted_method
from federec.plugins.base import parts
from federec.plugins.registry import build, references, trusted_plugin
from federec.settings import Settings, written
from federec.stages.registry import plain, stage

if TYPE_CHECKING:
    from federec.attackers.base import Attack


class RunConfig(Settings):
    """`config.yaml` of a run folder."""

    method: Reference = "pfedrec"
    """Reference of the method: its name, `path/to/mine.py:Mine` or `package.module:Mine`."""
    plugins: tuple[Reference, ...] = ()
    """References of the plug-ins on it, the last one outermost."""
    sources: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the file that defines a class, by the reference of the class; none for federec's own classes."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The method's and plug-ins' settings."""
    channel: tuple[dict[str, Any], ...] | None = None
    """Stages between a device and the server, in order: `{stage: clip, norm: 1.0}`. None: none in a simulation,
    `secure-sum` in a federation."""
    aggregator: str | None = None
    """How the server makes one of the devices' updates, with its settings: `mean`, `trimmed-mean:fraction=0.1`; the
    method's default if not given."""
    attack: str | None = None
    """What some of the simulated devices do instead of learning honestly: `promote:fraction=0.05`; nothing if not
    given."""
    data: str = "tastes"
    """A named set, a file, or a folder of columns; `<name>` for data that was in memory."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Which column of the file is the user, item, rating, timestamp, split."""
    min_interactions: NonNegativeInt | None = None
    """Leave out users with fewer rows; the set's own filter if not given."""
    k_core: NonNegativeInt | None = None
    """Leave out users and items with fewer partners, until all have k."""
    min_rating: float | None = None
    """Only rows with at least this rating count as interactions; all rows if not given."""
    repeats: Literal["merge", "keep"] | None = None
    """Rows that repeat a (user, item) pair: merged into the newest one, or kept as further training samples. Not given:
    as the named set does, else `merge`."""
    titles: str | None = None
    """A file with the titles of the items."""
    held_out: dict[str, str] = Field(default_factory=dict)
    """Files with the rows of `valid` and `test`, where the user has split the data already."""
    split: str | None = None
    """What is held out: `leave-one-out`, `time`, `ratio` or `given`, with fractions: `time:0.8,0.1,0.1`. Not given:
    `given` where the data says it, else `leave-one-out`."""
    ties: Ties | None = None
    """The order of a user's interactions with equal times: `random` or `file`; the protocol's own if not given."""
    protocol: str = "clean"
    """`clean` or `paper`."""
    select: str | None = None
    """The validation metric that picks the round, such as `full.ndcg@10` or `sampled.hr@10`; the protocol's own if not
    given."""
    patience: PositiveInt | None = None
    """Stop after this many rounds without a better one; play all rounds if not given."""
    rounds: PositiveInt | None = None
    """How many rounds; the method's default if not given."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random numbers of the run."""
    participation: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of the devices that take part in a round; the method's default if not given."""
    epsilon: PositiveFloat | None = None
    """Epsilon of differential privacy that the run must not exceed, for each user; the noise is chosen for it."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Probability that belongs to epsilon; 1e-6 if not given."""
    max_epsilon: PositiveFloat | None = None
    """End the run before the round that would exceed this epsilon, with the noise that the channel names."""
    fresh_steps: NonNegativeInt = 0
    """Local rounds that a device plays on its fresh history before it ranks its test items once more."""
    evaluate_users: PositiveInt | None = None
    """Evaluate at most this many users, drawn at random; all if not given."""
    device: str = "cpu"
    """Where tensors live: `cpu` or `cuda`."""

    engine: Literal["auto", "torch", "fused"] = "auto"
    """What plays rounds: `torch`, or `fused` kernels where the method has one; `auto` takes the faster."""

    @field_validator("protocol")
    @classmethod
    def _known_protocol(cls, name: str) -> str:
        return protocol(name).name

    @field_validator("select")
    @classmethod
    def _known_metric(cls, name: str | None) -> str | None:
        return name and ".".join(metric_of(name))

    @field_validator("split")
    @classmethod
    def _known_split(cls, rule: str | None) -> str | None:
        if rule is not None:
            parse_rule(rule)
        return rule

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
            raise UserError(f"unknown device '{name}'{did_you_mean(name, ('cpu', 'cuda'))}")
        return name

    @staticmethod
    def checked(given: Method | None = None, /, **values: Any) -> RunConfig:
        """A configuration from values, with the first fault of them in one line. `given` is the method itself, which is
        found by its reference otherwise."""
        for key in values:
            if key not in RunConfig.model_fields:
                raise UserError(f"a run has no setting '{key}'{did_you_mean(key, RunConfig.model_fields)}")
        try:
            config = RunConfig(**values)
        except ValidationError as error:
            raise UserError(": ".join(first_fault(error))) from None
        if given is not None:
            config._must_be(given)
        method = build(config.method, config.plugins, config.settings) if given is None else given
        link = config.link(method) if isinstance(method, DeviceMethod) else None
        if link is None and (config.channel or config.aggregator or config.attack):
            raise UserError(
                f"'{method.name}' is trained in one place, without a channel; leave out stages, aggregator and attack"
            )
        rounds = config.rounds or method.default_rounds
        return config.model_copy(
            update={
                "sources": config.sources if "sources" in values else config._sources(method),
                "settings": _plain(method if given is None else type(given).model_validate(config.settings)),
                "channel": config.channel and tuple(plain(stage(values)) for values in config.channel),
                "aggregator": written(link.aggregator.name, link.settings) if link is not None else None,
                "attack": written(link.attack.name, link.attack) if link is not None and link.attack else None,
                "repeats": config.repeats or (SETS[config.data].repeats if config.data in SETS else "merge"),
                "select": config.select or protocol(config.protocol).select,
                "ties": config.ties or protocol(config.protocol).ties,
                "rounds": min(rounds, method.most_rounds or rounds),
                "participation": config.participation or method.default_participation,
            }
        )

    @staticmethod
    def of(method: Method, data: Interactions, **values: Any) -> RunConfig:
        """The configuration of a method at work on loaded data."""
        origin = data.origin or {"data": in_memory(data.name)}
        reference, plugins = references(method)
        named = {"method": reference, "plugins": plugins, "settings": _plain(method)}
        return RunConfig.checked(method, **named, **origin, **values)

    @staticmethod
    def from_server(**values: Any) -> RunConfig:
        """The configuration that a server sends to a device. It names classes of the device's own: registered ones, or
        those that the device was told to trust (see `Kind.trusted`); anything else is refused."""
        sources = dict(values.get("sources") or {})
        method = str(values.get("method", RunConfig().method))
        trusted = trusted_method(method, sources.get(method))
        plugins = [(str(name), trusted_plugin(str(name), sources.get(str(name)))) for name in values.get("plugins", ())]
        own = {absolute(mine): sources[asked] for asked, mine in ((method, trusted), *plugins) if asked in sources}
        return RunConfig.checked(
            **values | {"method": trusted, "plugins": tuple(mine for _, mine in plugins), "sources": own}
        )

    @staticmethod
    def read(path: Path, given: Method | None = None) -> RunConfig:
        """From a `config.yaml`. `given` is the run's method, where it cannot be found by its reference."""
        try:
            values = yaml.safe_load(read_bytes(path))
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise UserError(f"{path}{where}: is not valid YAML; repair it or start a new run") from None
        if not isinstance(values, dict):
            raise UserError(f"{path}: holds no settings; name a config.yaml of a run")
        # What versions before 0.3 did, which did not write it down:
        values.setdefault("select", "sampled.hr@10")
        values.setdefault("ties", "file")
        try:
            return RunConfig.checked(given, **{str(key): value for key, value in values.items()})
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def text(self) -> str:
        """As YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def build(self, given: Method | None = None) -> Method:
        """The method as this run uses it: from the references and the settings, or the given one."""
        method = build(self.method, self.plugins, self.settings) if given is None else given
        return method.for_rounds(self.rounds or method.default_rounds)

    def link(self, method: DeviceMethod) -> Link:
        """What lies between the devices and the server."""
        return Link.of(method, [stage(values) for values in self.channel or ()], self.aggregator, self._attack())

    def _attack(self) -> Attack | None:
        if not self.attack:
            return None
        from federec.attackers.registry import parse_attack  # simulations have attackers, and torch

        return parse_attack(self.attack)

    def changed(self, method: Method) -> list[Path]:
        """Files that define the method's classes and have changed since the run was configured."""
        now = self._sources(method)
        classes = dict(zip((self.method, *self.plugins), _classes(method), strict=True))
        files = (source(classes[name]) for name, then in self.sources.items() if now.get(name, then) != then)
        return [file for file in files if file is not None]

    def _sources(self, method: Method) -> dict[str, str]:
        named = zip((self.method, *self.plugins), map(digest, _classes(method)), strict=True)
        return {reference: sha256 for reference, sha256 in named if sha256 is not None}

    def _must_be(self, method: Method) -> None:
        """Refuse a method that is not the one of this configuration."""
        asked, (name, plugins) = (self.method, *self.plugins), references(method)
        if [each.rpartition(":")[2] for each in asked] != [each.rpartition(":")[2] for each in (name, *plugins)]:
            raise UserError(f"the run is of {'+'.join(asked)}, not of the given {'+'.join((name, *plugins))}")
        try:
            same = self.build(type(method).model_validate(self.settings)) == self.build(method)
        except UserError:
            same = False
        if not same:
            raise UserError(f"the given '{method.name}' has other settings than the run: {self.settings}")

    def split_of(self, data: Interactions) -> Split:
        """The data, split as the run splits it."""
        return make_split(data, self.split, self.seed, self.ties or protocol(self.protocol).ties)

    def load(self, data: Loadable | None = None) -> Interactions:
        """The data; or `data`, read in the same way, where it cannot be loaded again."""
        if isinstance(data, Interactions):
            return data
        return load(
            self.data if data is None else data,
            self.columns,
            self.min_interactions,
            self.k_core,
            min_rating=self.min_rating,
            repeats=self.repeats,
            titles=self.titles,
            held_out=self.held_out,
        )


def name_of(config: RunConfig, method: Method) -> str:
    """What a run is called if nobody names it: METHOD-DATA-PROTOCOL-SEED."""
    data = re.sub(r"[<>]", "", Path(config.data).name.split(".")[0])
    name = re.sub(r"[^\w.+-]+", "-", "+".join([method.name, *method.plugins]))
    return "-".join([name, data, config.protocol, f"s{config.seed}"])


def fewer_rounds(config: RunConfig, asked: int | None) -> list[str]:
    """What to say where a run has fewer rounds than were asked for."""
    if asked is None or asked == config.rounds:
        return []
    return [f"rounds {asked}: '{config.method}' has done all it can after {config.rounds}"]


def _classes(method: Method) -> tuple[type[Method], ...]:
    """The method's class and those of its plug-ins."""
    class_, plugins = parts(type(method))
    return class_, *plugins


def _plain(method: Method) -> dict[str, Any]:
    """The settings of a method as YAML and JSON can hold them."""
    try:
        return method.model_dump(mode="json")
    except PydanticSerializationError as error:
        words = str(error).splitlines()[0]
        raise UserError(
            f"the settings of '{method.name}' cannot be written to a file ({words}); use plain types"
        ) from None
