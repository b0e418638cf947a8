"""What rules about a runtime draw: sizes, places and contents, from the run's seed. Without torch.

Boundaries are what breaks copies and allocators: powers of two and one beside them, pages, what
no word divides, and sizes that one descriptor, one staging buffer or 16 and 24 bits cannot hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target

PAGE: Final = 4096
MIB: Final = 1 << 20
LARGEST: Final = 256 * MIB


def chance(target: Target, *labels: object) -> random.Random:
    """A stream of draws that the run's seed and labels fix."""
    return random.Random("/".join(map(str, (target.seed, *labels))))


def content(seed: object, size: int) -> bytes:
    """Random bytes; where there is room, one page of zeros among them.

    No period: a page that is sent twice, or left out, shows.
    """
    import numpy

    generator = numpy.random.Generator(numpy.random.SFC64(abs(hash_of(seed))))
    data = generator.bytes(size)
    if not 4 * PAGE <= size <= 16 * MIB:
        return data
    at = int(generator.integers(1, size // PAGE - 1)) * PAGE
    return data[:at] + bytes(PAGE) + data[at + PAGE :]


def hash_of(seed: object) -> int:
    """A number that the seed's text fixes, in any process."""
    return random.Random(str(seed)).getrandbits(60)


def beside(draw: random.Random, power: int) -> int:
    """2^power, one less or one more."""
    return int(2**power) + draw.choice((-1, 0, 1))


def between(draw: random.Random, low: int, high: int) -> int:
    """A size of [low, high], its logarithm evenly drawn."""
    return int(min(high, max(low, round(low * (high / low) ** draw.random()))))


def _bytes(draw: random.Random) -> list[int]:
    return [1, *draw.sample(range(2, 18), 3), draw.randrange(18, 64), 64, 65]


def _below_a_page(draw: random.Random) -> list[int]:
    return [beside(draw, power) for power in range(7, 12)] + [draw.randrange(66, PAGE)]


def _about_a_page(draw: random.Random) -> list[int]:
    more = draw.randrange(2, 16)
    return [PAGE - 1, PAGE, PAGE + 1, more * PAGE + draw.choice((-1, 1, 511)), 512 * more - 1]


def _powers(draw: random.Random) -> list[int]:
    return [beside(draw, power) for power in range(13, 21)] + [(1 << draw.randrange(16, 21)) + 1]


def _odd(draw: random.Random) -> list[int]:
    return [between(draw, 100, 2 * MIB) | 1 for _ in range(6)]


def _megabytes(draw: random.Random) -> list[int]:
    return [
        MIB + 3,
        beside(draw, draw.randrange(21, 24)),
        between(draw, 9 * MIB, 31 * MIB) | 1,
        (1 << 24) + draw.choice((0, 1)),
    ]


def _large(draw: random.Random) -> list[int]:
    return [between(draw, 25 * MIB, 48 * MIB) | 1, LARGEST + draw.choice((-1, 0, 0))]


SIZES: Final[Mapping[str, Callable[[random.Random], list[int]]]] = {
    "bytes": _bytes,
    "below a page": _below_a_page,
    "about a page": _about_a_page,
    "beside powers of two": _powers,
    "odd": _odd,
    "megabytes": _megabytes,
    "to 256 MiB": _large,
}
"""Sizes of copies by class, in bytes."""
