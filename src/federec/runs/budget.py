"""The privacy budget of a run: which noise it asks for, when it is used up, and what the result says of it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from federec.errors import UserError
from federec.federation.channel import Link
from federec.federation.costs import cost_of
from federec.files import make_folder, read_bytes, write_atomic
from federec.methods.base import DeviceMethod, Method
from federec.privacy.account import Account
from federec.privacy.cost import DELTA, Cost, multiplier
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.stages.base import Promise
from federec.stages.central_noise import CentralNoise
from federec.stages.clip import Clip
from federec.stages.distributed_noise import DistributedNoise
from federec.stages.registry import plain, stage

QUANTILE = 0.5
"""Of the devices' updates, for the norm to which they are clipped where a run names none."""
ONCE = 10.0
"""The norm, where devices send only once. The co-occurrence of n items that count 1 each has norm n, so that of all but
the shortest histories is brought to the same length."""
_NOISE = ("laplace", "gaussian", CentralNoise.name, DistributedNoise.name)
_COVERS = "the shared parameters of all rounds; not losses and metrics, nor the choice of the best round by them"


def resolved(config: RunConfig, method: Method, devices: int, n_items: int) -> RunConfig:
    """The configuration with all that its epsilon leaves open: stages, the noise multiplier, and how many devices are
    counted on. `devices` are those that can take part."""
    if not isinstance(method, DeviceMethod):
        if config.epsilon is not None or config.max_epsilon is not None:
            raise UserError(f"'{method.name}' is trained in one place; an epsilon is for methods of devices")
        return config
    stages = [stage(values) for values in config.channel or ()]
    if config.epsilon is not None:
        stages = _with_noise(stages, method, once=charged_rounds(config, method) == 1)
    asked = max(1, round((config.participation or 1.0) * devices))
    for place, each in enumerate(stages):
        if isinstance(each, DistributedNoise) and each.devices is None:
            stages[place] = each = each.model_copy(update={"devices": asked})
        if isinstance(each, DistributedNoise) and each.counted > asked:
            raise UserError(f"'{each.name}' counts on {each.counted} devices, and a round may have {asked}; lower it")
        if isinstance(each, CentralNoise | DistributedNoise) and each.multiplier is None:
            if config.epsilon is None:
                raise UserError(
                    f"'{each.name}' has no multiplier; give one, or say which epsilon it is for (--epsilon)"
                )
            stages[place] = each.model_copy(update={"multiplier": _solved(config, method, stages, place, n_items)})
    if [plain(each) for each in stages] == list(config.channel or ()):
        return config
    return config.model_copy(update={"channel": tuple(plain(each) for each in stages)})


def _with_noise(stages: list[Any], method: DeviceMethod, once: bool) -> list[Any]:
    """Stages that can keep an epsilon: those given, with clipping and noise where they have neither. Behind a secure
    sum the devices add the noise, which need not trust the server; otherwise the server does. `once`: devices send only
    once, so there is no round in which to learn how long their updates are."""
    names = [each.name for each in stages]
    if not any(name in _NOISE for name in names):
        hidden = "secure-sum" in names and not method.sends_parts
        first = sum(each.per_user for each in stages) if hidden else len(stages) - ("secure-sum" in names)
        stages = [*stages[:first], DistributedNoise() if hidden else CentralNoise(), *stages[first:]]
    if not any(name in ("clip", "laplace", "gaussian") for name in names):
        stages = [Clip(norm=ONCE) if once else Clip(quantile=QUANTILE), *stages]
    return stages


def _solved(config: RunConfig, method: DeviceMethod, stages: list[Any], place: int, n_items: int) -> float:
    """The noise multiplier that the run's epsilon asks for."""
    _needed()
    assert config.epsilon is not None
    rounds = charged_rounds(config, method)
    noise, limit = stages[place], min(config.epsilon, config.max_epsilon or config.epsilon)

    sampling = sampling_of(config, noise.promise(Promise()).noise)

    def cost(value: float) -> Cost:
        tried = [*stages[:place], noise.model_copy(update={"multiplier": value}), *stages[place + 1 :]]
        made = cost_of(method, Link.of(method, tried, config.aggregator), n_items, sampling)
        assert not isinstance(made, str), made
        return made

    return multiplier(limit, rounds, cost, config.delta or DELTA)


def charged_rounds(config: RunConfig, method: DeviceMethod) -> int:
    """Rounds of a run in which devices send anything."""
    return sum(method.speaks(number) for number in range(1, (config.rounds or method.default_rounds) + 1))


def sampling_of(config: RunConfig, noise: str) -> float:
    """The probability of taking part that an account may count on, by what a channel promises of noise: only a trusted
    server keeps it secret who took part."""
    return (config.participation or 1.0) if noise == "central" else 1.0


def _needed() -> None:
    if find_spec("dp_accounting") is None:
        raise UserError(
            "counting epsilon needs the package dp-accounting; install it with: pip install 'federec[privacy]'"
        )


@dataclass
class Budget:
    """What a run may spend, kept in its folder before it is spent."""

    account: Account
    method: DeviceMethod
    folder: RunFolder | None
    """Where it is kept; None: nowhere."""
    repeatable: bool
    """Whether a round that is played again releases the same as before: in a simulation, whose noise is a function of
    the seed."""

    def ends(self, round_: int) -> bool:
        """Whether the run has to end before a round."""
        return self.method.speaks(round_) and not self.account.affords(round_, self.repeatable)

    def charge(self, round_: int) -> None:
        """Pay for a round that is about to begin."""
        if not self.method.speaks(round_):
            return
        self.account = self.account.charged(round_, self.repeatable)
        if self.folder is not None:
            make_folder(self.folder.model)
            write_atomic(self.folder.account, self.account.text())


def budget_of(
    config: RunConfig,
    method: Method,
    n_items: int,
    folder: RunFolder | None = None,
    writes: bool = True,
    repeatable: bool = True,
) -> Budget | None:
    """The budget of a run, as far as it has spent it already; None where there is nothing to count. `writes`: whether
    this process keeps it in the folder."""
    made = _cost(config, method, n_items)
    limits = [limit for limit in (config.epsilon, config.max_epsilon) if limit is not None]
    if made is None or isinstance(made, str):
        if limits:
            raise UserError(f"epsilon {min(limits):g} cannot be kept: {made or 'no noise'}")
        return None
    promise = config.link(method).channel.promise  # type: ignore[arg-type]
    if limits or promise.multiplier:
        _needed()
    elif find_spec("dp_accounting") is None:
        return None
    account = Account(made, config.delta or DELTA, min(limits, default=None))
    if folder is not None and folder.account.is_file():
        account = account.read(read_bytes(folder.account).decode(errors="replace"), folder.account)
    if account.most < 1:
        raise UserError(f"epsilon {account.limit:g} does not pay for one round with this noise; raise one of them")
    assert isinstance(method, DeviceMethod)
    return Budget(account, method, folder if writes else None, repeatable)


def _cost(config: RunConfig, method: Method, n_items: int) -> Cost | str | None:
    if not isinstance(method, DeviceMethod):
        return None
    link = config.link(method)
    noise = link.channel.promise.noise
    return cost_of(method, link, n_items, sampling_of(config, noise)) if noise else None


def described(config: RunConfig, method: Method, n_items: int, budget: Budget | None) -> dict[str, Any]:
    """What `result.json` says of privacy; nothing where the channel promises nothing."""
    if not isinstance(method, DeviceMethod):
        return {}
    promise = config.link(method).channel.promise
    if promise == Promise():
        return {}
    multiplier = promise.multiplier or None
    if promise.noise == "gaussian" and promise.clip:
        multiplier = promise.scale / promise.clip
    known = promise._asdict() | {"epsilon": None, "delta": None, "accountant": None, "noise_multiplier": multiplier}
    del known["multiplier"]
    if budget is not None:
        account = budget.account
        known |= {
            "epsilon": account.epsilon,
            "delta": 0.0 if account.accountant == "sum" else account.delta,
            "accountant": account.accountant,
            "charged_rounds": account.rounds,
            "sampling": sampling_of(config, promise.noise),
            "unit": "a user's whole history, there or not",
            "covers": _COVERS,
        }
        return {"privacy": known}
    made = _cost(config, method, n_items)
    why = made if isinstance(made, str) else "dp-accounting is not installed"
    return {"privacy": known | ({"why": f"no epsilon: {why}"} if promise.noise else {})}
