"""Durations and sizes as users write them: "5s" and "64MB".

Options hold the text, the protocol takes the number: `milliseconds` and `size_bytes` convert. A
number without a unit is refused, since it could mean seconds or milliseconds. Sizes are powers of
1024 in every spelling, as in Spark's own options.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

from cutwater.errors import ConfigError

_QUANTITY: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[a-z]+)")


def _map_spellings(*families: tuple[int, str]) -> Mapping[str, int]:
    """Map every spelling to its factor; each family lists its spellings separated by blanks."""
    return {unit: factor for factor, spellings in families for unit in spellings.split()}


_DURATIONS: Final = _map_spellings(
    (1, "ms millisecond milliseconds"),
    (1_000, "s sec second seconds"),
    (60_000, "m min minute minutes"),
    (3_600_000, "h hour hours"),
    (86_400_000, "d day days"),
)
_SIZES: Final = _map_spellings(
    (1, "b byte bytes"),
    (1024, "k kb kib"),
    (1024**2, "m mb mib"),
    (1024**3, "g gb gib"),
    (1024**4, "t tb tib"),
)
_DURATION_EXAMPLES: Final = ("500ms", "5s", "1m", "2h")
_SIZE_EXAMPLES: Final = ("512KB", "64MB", "1GB")


def milliseconds(text: str, option: str = "duration") -> int:
    """Return the duration in milliseconds; if it is none, a `ConfigError` names the option.

    The text is a number and a unit, such as `500ms`, `5s`, `1.5 minutes`; case does not matter.
    """
    return _whole(text, option, _DURATIONS, ("a duration", "milliseconds", _DURATION_EXAMPLES))


def size_bytes(text: str, option: str = "size") -> int:
    """Return the size in bytes; if it is none, a `ConfigError` names the option.

    The text is a number and a unit, such as `512KB`, `64MB`, `1.5 GiB`; case does not matter.
    """
    return _whole(text, option, _SIZES, ("a size", "bytes", _SIZE_EXAMPLES))


def as_duration(milliseconds: int) -> str:
    """Return the text that `milliseconds` reads back exactly, in the largest unit that fits."""
    return _in_largest(milliseconds, ((3_600_000, "h"), (60_000, "m"), (1_000, "s")), "ms")


def as_size(size_bytes: int) -> str:
    """Return the text that `size_bytes` reads back exactly, in the largest unit that fits."""
    units = ((1024**4, "TB"), (1024**3, "GB"), (1024**2, "MB"), (1024, "KB"))
    return _in_largest(size_bytes, units, "B")


def _in_largest(amount: int, units: Iterable[tuple[int, str]], smallest: str) -> str:
    for factor, unit in units:
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return f"{amount}{smallest}"


def _whole(
    text: object,
    option: str,
    factors: Mapping[str, int],
    words: tuple[str, str, Iterable[str]],
) -> int:
    what, smallest, examples = words
    hint = f"write {what} such as {', '.join(examples)}"
    # An option can come from a file or an untyped program, so the type is checked as well.
    if not isinstance(text, str):
        raise ConfigError(option, f"{text!r} has no unit; {hint}")
    found = _QUANTITY.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(option, f"{text!r} is not {what}; {hint}")
    factor = factors.get(found["unit"])
    if factor is None:
        raise ConfigError(option, f"{text!r} has no unit that is known here; {hint}")
    amount = Decimal(found["number"]) * factor
    if amount != amount.to_integral_value():
        raise ConfigError(option, f"{text!r} is not a whole number of {smallest}; {hint}")
    return int(amount)
