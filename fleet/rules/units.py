"""Formats numbers for people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def counted(count: int, what: str) -> str:
    """Returns "1 host", "4 hosts"."""
    return f"{count} {what}{'s' * (count != 1)}"


def few(texts: Iterable[str], most: int = 3, count: int = 0) -> str:
    """Returns "a, b, c and 4 more". If there is only one more than `most`, it is named, too. count: the number of all
    texts, if `texts` has only some of them."""
    listed = list(texts)
    more = max(count, len(listed)) - most
    named = listed[: most + (more == 1)]
    return ", ".join(named) + (f" and {more} more" if more > 0 and len(named) <= most else "")


def size(n: float, *, steady: bool = False) -> str:
    """Returns bytes with a binary prefix and three significant digits: "9.77 GiB". steady: always with one decimal
    ("9.8 GiB"), for a number that is redrawn often."""
    power = min(max(int(abs(n)).bit_length() - 1, 0) // 10, 4)
    value, unit = n / 1024**power, ("B", "KiB", "MiB", "GiB", "TiB")[power]
    digits = ".0f" if unit == "B" else ".1f" if steady else ".3g" if value < 100 else ".0f"
    return f"{value:{digits}} {unit}"


size_text = partial(size, steady=True)


def short(number: float | None) -> str:
    """Returns a number in few characters: "870", "1.2k", "35M"; "?" for one that is not known."""
    if number is None:
        return "?"
    power = next((power for power in range(4) if number < 999.5 * 1000**power), 4)
    value, unit = number / 1000**power, ("", "k", "M", "G", "T")[power]
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


def seconds(s: float) -> str:
    """Returns a duration in one unit: "0.4 ms", "2.5 s", "3.1 h"."""
    for limit, factor, unit in ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h")):
        if abs(s) < limit:
            return f"{s / factor:.3g} {unit}"
    return f"{s / 86400:.3g} d"


def bytes_of(text: str) -> float | None:
    """Returns the bytes that "100MB", "1.5 GiB", "2G" or "4096" mean; None if the text is no size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    return float(match[1]) * PREFIXES[match[2]] if match and match[2] in PREFIXES else None


def amount(value: float, unit: str) -> str:
    """Returns a limit, or a measured value, as a text."""
    if value == float("inf"):
        return "unlimited"
    return size(value) if unit == "bytes" else seconds(value) if unit == "s" else f"{value:g}"


def shown(value: Any) -> str:
    """Returns a fact for a sentence or a cell; "none" for an absent one."""
    return "none" if value is None else str(value)
