"""Formatting of large numbers."""

from __future__ import annotations


def byte_size(count: int) -> str:
    """Bytes in binary units, as in the lectures: 768 GB is 768 x 2^30."""
    return scaled(count, 1024, "B")


def scaled(count: int, base: int = 1000, unit: str = "") -> str:
    """A number with a prefix: 1,234,567 is 1.235 M."""
    value, prefixes = float(count), ["", "K", "M", "G", "T", "P", "E"]
    while value >= base and len(prefixes) > 1:
        value, prefixes = value / base, prefixes[1:]
    number = f"{value:.4g}" if value < 1000 else f"{value:.0f}"
    return f"{number} {prefixes[0]}{unit}"
