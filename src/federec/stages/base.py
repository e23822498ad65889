"""What a stage is: something that happens to an update on its way from a device to the server.

A channel is an ordered tuple of stages (`federation.channel`). A device applies them in order to what it sends, with
random numbers that only it can foresee; the server applies its halves to the total. What a stage does to the size of a
message is what it makes of the `Format`; what it does for privacy is what it makes of the `Promise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from federec.cohort.layers import Param, Params
from federec.cohort.update import Update
from federec.lazy import torch
from federec.settings import Part
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

ID_BYTES = 4
KEPT = "channel."
"""Beginning of the names of what stages have the server keep between rounds."""
_BITS = 32  # of a value, where no stage says otherwise


@dataclass(frozen=True)
class Format:
    """How an update is written, which decides how many bytes it takes. Zero means exactly zero: nothing is rounded."""

    rows: Literal["changed", "named", "all"] = "changed"
    """Rows that are written: those that are not all zeros, in the cheapest way; every row of the update, with its
    item's code; or whole tables in the order of items, without codes."""
    value_bits: int = _BITS
    row_bytes: int = 0
    """Bytes that a row takes besides its values, such as an exponent."""

    def table(self, counts: Tensor, width: int, n_items: int) -> Tensor:
        """Bytes of this many rows, each with its item's code; of the whole table where that is cheaper or asked for."""
        row = self.row_bytes + self._bytes(width)
        whole = n_items * row
        return torch.full_like(counts, whole) if self.rows == "all" else (counts * (ID_BYTES + row)).clamp(max=whole)

    def changes(self, rows: Tensor, values: Tensor, width: int, n_items: int) -> Tensor:
        """Bytes of changed rows, of which `rows` are not all zeros and hold `values` values that are not: as rows, or
        each as code, one bit a value and the values that are not zero."""
        dense = self.table(rows, width, n_items)
        if self.rows != "changed":
            return dense
        by_value = rows * (ID_BYTES + self.row_bytes + _octets(width)) + self._packed(values)
        return torch.minimum(dense, by_value)

    def layer(self, values: Tensor, width: int) -> Tensor:
        """Bytes of a layer of `width` values, `values` of which are not zero: whole, or as bits and non-zero values."""
        whole = self.row_bytes + self._bytes(width)
        if self.rows == "all":
            return torch.full_like(values, whole)
        return (self.row_bytes + self._packed(values) + _octets(width)).clamp(max=whole)

    def update(self, update: Update) -> Tensor:
        """Bytes of each device's update, [C]."""
        filled = sum((_filled(rows) for rows in update.rows.values()), torch.zeros_like(update.ids))
        none, owner = torch.zeros_like(update.counts), update.owner
        kept, values = (none.scatter_add(0, owner, x) for x in (filled.sign(), filled))
        size = self.changes(kept if self.rows == "changed" else update.counts, values, update.width, update.n_items)
        for layer in update.layers.values():
            size = size + self.layer(_filled(layer), layer[0].numel())
        return size

    def _bytes(self, values: int) -> int:
        return -(-values * self.value_bits // 8)

    def _packed(self, values: Tensor) -> Tensor:
        """Bytes of so many values, one after the other."""
        if self.value_bits % 8 == 0:  # a division takes longer than the rest
            return values * (self.value_bits // 8)
        return (values * self.value_bits + 7) // 8


class Promise(NamedTuple):
    """What a channel promises about one device's update, however it learned."""

    clip: float | None = None
    """Largest norm of one user's update."""
    noise: str = ""
    """Distribution of what a device adds to each value, if any."""
    scale: float = 0.0
    """Scale of the Laplace distribution, or standard deviation."""
    hidden: bool = False
    """The server only sees sums over devices."""
    power: Literal[1, 2] = 2
    """Which norm is clipped: the sum of absolute values, or the Euclidean one."""
    follows: bool = False
    """The clipped norm follows the devices from round to round."""
    multiplier: float = 0.0
    """Standard deviation of the noise on the sum over all devices / clip, where the noise is `central` or
    `distributed`."""
    rounding: float = 0.0
    """How far rounding may move each value after it was clipped."""


class Settling(NamedTuple):
    """What the server's half of a stage knows of a round."""

    devices: int
    """Devices whose updates were summed."""
    random: Randomness
    """The server's own, as of a cohort of one."""
    memory: Params
    """What stages have the server keep between rounds, under names that begin with `KEPT`."""
    sends: Mapping[str, Param]
    """What updates consist of before this stage."""
    n_items: int


class Stage(Part):
    """What happens to an update on its way, in two halves. Its fields are its settings.

    Subclasses override what they change; as it stands, a stage changes nothing.
    """

    name: ClassVar[str]
    quiet: ClassVar[tuple[str, ...]] = ()
    """Settings that are written down only where they differ from their defaults."""
    per_user: ClassVar[bool] = False
    """It works on every single user's update; otherwise on what a device or hub sends, the sum over its users."""
    on_sums: ClassVar[bool] = False
    """It can as well be applied to the sum of many devices' updates, which is what a kernel gives."""
    adds_rows: ClassVar[bool] = False
    """Updates that went through it hold rows that the device did not change."""
    fetches_all: ClassVar[bool] = False
    """Devices fetch the rows of all items, so that nobody learns which ones they need."""

    @classmethod
    def called(cls) -> str:
        return f"stage '{cls.name}'"

    def silent(self) -> set[str]:
        """Settings that are not written down."""
        fields = type(self).model_fields
        return {name for name in self.quiet if getattr(self, name) == fields[name].default}

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [(name, value) for name, value in super().__repr_args__() if name not in self.silent()]

    def device(self, update: Update, random: Randomness) -> Update:
        """What the devices of a cohort make of their updates."""
        return update

    def server(self, total: Params, settling: Settling) -> Params:
        """What the server makes of the sum over the devices."""
        return total

    def now(self, memory: Params) -> Stage:
        """The stage as it is in this round, after what the server has kept of earlier ones."""
        return self

    def bound(self, known: Promise) -> Self:
        """The stage after others that promise this."""
        return self

    def sends(self, known: Mapping[str, Param], n_items: int) -> Mapping[str, Param]:
        """What updates consist of after this stage."""
        return known

    def format(self, known: Format) -> Format:
        """How an update is written after this stage."""
        return known

    def promise(self, known: Promise) -> Promise:
        """What is promised about an update after this stage."""
        return known

    def in_kernel(self) -> Mapping[str, float]:
        """Settings of a fused form that have its kernel do this stage's work; empty where no kernel can."""
        return {}


def shapes(sends: Mapping[str, Param], n_items: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the sums that a server gets, by name."""
    return {name: (n_items,) * param.rows + param.sized(n_items) for name, param in sends.items()}


def _filled(values: Tensor) -> Tensor:
    """How many values of each row are not zero."""
    rows = values.flatten(1)
    # The common case, recognised several times as fast on a CPU; on a GPU the check would make the host wait.
    if rows.device.type == "cpu" and int(rows.count_nonzero()) == rows.numel():
        return torch.full((len(rows),), rows.shape[1], device=rows.device)
    return rows.count_nonzero(1)


def _octets(values: int) -> int:
    """Bytes of one bit a value."""
    return -(-values // 8)
