"""Ways to damage bytes: each takes content that is not empty and a source of chance, and gives other content."""

import random
from collections.abc import Callable

Mutator = Callable[[bytes, random.Random], bytes]
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def overwrite(content: bytes, chance: random.Random) -> bytes:
    """Some bytes become others, often more or fewer."""
    place = chance.randrange(len(content))
    return content[:place] + chance.randbytes(chance.randint(1, 8)) + content[place + chance.randint(1, 8) :]


def flip_bits(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def set_number(content: bytes, chance: random.Random) -> bytes:
    """A number of one to eight bytes becomes one at which sizes and offsets tend to break."""
    size = chance.choice((1, 2, 4, 8))
    number = chance.choice(_NUMBERS) if chance.random() < 0.8 else chance.getrandbits(8 * size)
    place = chance.randrange(len(content))
    packed = (number % (1 << 8 * size)).to_bytes(size, chance.choice(("big", "little")))
    return content[:place] + packed + content[place + size :]


def cut(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] if chance.random() < 0.8 else content[:place] + content[place + 1 :]


def insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.randbytes(chance.randint(1, 64)) + content[place:]


def extend(content: bytes, chance: random.Random) -> bytes:
    return content + chance.randbytes(chance.randint(1, 64))


def copy_part(content: bytes, chance: random.Random) -> bytes:
    size = chance.randint(1, max(1, len(content) // 4))
    first, second = (chance.randrange(len(content)) for _ in range(2))
    part = content[first : first + size]
    return content[:second] + part + content[second + len(part) :]


def swap_parts(content: bytes, chance: random.Random) -> bytes:
    a, b, c = sorted(chance.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def blank(content: bytes, chance: random.Random) -> bytes:
    """A part is zeros: few bytes, or all that follows."""
    start = chance.randrange(len(content))
    size = min(chance.choice((1, 16, 512, len(content))), len(content) - start)
    return content[:start] + bytes(size) + content[start + size :]


def repeat(content: bytes, chance: random.Random) -> bytes:
    start, end = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    part = content[start:end]
    times = chance.choice((1, 1, 1, 2, max(1, 20_000 // max(1, len(part)))))
    return content[:end] + part * times + content[end:]


MUTATORS: tuple[Mutator, ...] = (
    *(overwrite, flip_bits, set_number, cut, insert, extend, copy_part, swap_parts, blank, repeat),
)
