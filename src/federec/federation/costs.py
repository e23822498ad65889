"""What one round costs a user's privacy, by what lies between the devices and their server."""

from __future__ import annotations

from federec.federation.channel import Channel, Link
from federec.methods.base import DeviceMethod
from federec.privacy.cost import Cost, Gaussian, Laplace, Skellam
from federec.stages.distributed_noise import NOISED, DistributedNoise


def cost_of(method: DeviceMethod, link: Link, n_items: int, sampling: float = 1.0) -> Cost | str:
    """The cost of a round in which devices send anything; or why there is no bound on it. `sampling` is the probability
    with which a user takes part, if each does so independently of others and nobody knows who did."""
    promise = link.channel.promise
    if not promise.noise:
        return "no noise"
    if promise.clip is None:
        return "nothing bounds what one user sends: clip before the noise"
    if promise.noise == "central":
        return Gaussian(promise.multiplier, sampling) if promise.multiplier else "no noise"
    if promise.noise == "distributed":
        size = link.channel.sends(method.sends(), n_items)[NOISED].shape[0]
        return skellam_cost(next(s for s in link.channel.stages if isinstance(s, DistributedNoise)), size)
    return local_cost(link.channel)


def skellam_cost(stage: DistributedNoise, size: int, honest: float = 1.0) -> Cost | str:
    """Of a sum to which this fraction of the devices that are counted on adds its noise."""
    variance = honest * stage.variance(size)
    return Skellam(stage.l2(size), stage.l1(size), variance) if variance else "no noise"


def local_cost(channel: Channel) -> Cost | str:
    """Of a message that the server reads, under the device's own noise: any two users' differ by twice the clipped
    norm. Without `dense`, or with noise before it, the rows that are sent say what the user did."""
    promise = channel.promise
    if not whole_tables(channel):
        return "which rows are sent is not hidden: put 'dense' right before the noise"
    if promise.clip is None:
        return "nothing bounds what one user sends: clip before the noise"
    if promise.noise == "gaussian":
        wrong = "normal noise needs the Euclidean norm clipped: clip:power=2"
        return Gaussian(promise.scale / (2 * promise.clip)) if promise.power == 2 else wrong
    wrong = "Laplace noise needs the sum of absolute values clipped: clip:power=1"
    return Laplace(2 * promise.clip / promise.scale) if promise.power == 1 else wrong


def whole_tables(channel: Channel) -> bool:
    """Whether a device's noise lies on all rows, whatever the user did."""
    names = [stage.name for stage in channel.stages]
    noise = channel.promise.noise
    if "dense" not in names or noise not in names[names.index("dense") :]:
        return False
    return "top-rows" not in names[names.index("dense") : names.index(noise)]
