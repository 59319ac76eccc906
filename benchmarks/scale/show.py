"""Figures of very different sizes in few characters."""

from __future__ import annotations

_BYTES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SECONDS = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


def show(value: float, unit: str) -> str:
    """Three digits of bytes (`B`) or seconds (`s`), in the largest unit of which it has two or more, or else one."""
    for size, name in _BYTES if unit == "B" else _SECONDS:
        if value >= (2 * size if unit == "s" and size > 1 else size):
            return f"{_digits(value / size)} {name}"
    return "0" if value == 0 else f"{_digits(value)} B" if unit == "B" else f"{_digits(1e6 * value)} µs"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show_images(images: int) -> str:
    """A number of images, three digits of it; `10⁶` where it is a power of ten."""
    exponent = len(str(images)) - 1
    if images == 10**exponent and exponent >= 4:
        return "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{round(images, 2 - exponent):,}"
