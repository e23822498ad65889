import numpy as np
from tests.web.node import needs_node, node

from federec import streams

pytestmark = needs_node
PURPOSES = ("NEGATIVES", "SHUFFLE", "CANDIDATES", "HOLDOUT", "LAPLACE", "GAUSSIAN", "ROUNDING", "VALIDATION", "TIES")


def unsigned(number):
    return int(number) & (2**64 - 1)


def test_the_page_draws_the_same_bits_as_python():
    cases = [(0, 1, 0), (42, 7, 2), (2**40 + 3, 1000, 2**31 - 1), (5, 0, 2**62 + 1), (-3, 2, -5)]
    draws = [0, 5, 2**40 - 1, 2**43 + 17]
    got = node(
        ["streams"],
        """return cases.map(([seed, round, user]) => draws.map((draw) => {
             const key = streams.streamKey(BigInt(seed), round, BigInt(user));
             const random = streams.bits(key, BigInt(draw));
             return [random, streams.below(random, 1000), streams.below(random, 2 ** 31 - 1), streams.unit(random)];
           }));""",
        cases=[[str(seed), round_, str(user)] for seed, round_, user in cases],
        draws=[str(draw) for draw in draws],
    )
    for (seed, round_, user), numbers in zip(cases, got, strict=True):
        key = streams.keys(seed, round_, np.array([user]))
        for draw, number in zip(draws, numbers, strict=True):
            random = streams.bits(key, draw)
            scaled = [int(streams.below(random, bound)[0]) for bound in (1000, 2**31 - 1)]
            assert number == [str(unsigned(random[0])), *scaled, float(streams.unit(random)[0])]


def test_purposes_have_the_same_numbers():
    got = node(["streams"], "return names.map((name) => streams[name]);", names=list(PURPOSES))
    assert got == [str(getattr(streams, name)) for name in PURPOSES]
