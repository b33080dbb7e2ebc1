"""What users write for a limit, made into seconds; and which of two limits gives way.

A limit is *given* when a caller wrote it, and a *default* otherwise. Two given limits of which one
could never fire are refused; a default that a given limit makes unreachable gives way instead.
"""

import math
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

if TYPE_CHECKING:
    from datetime import timedelta
    from decimal import Decimal
    from fractions import Fraction

    Duration = float | timedelta | Decimal | Fraction | None

__all__ = [
    "MAX_SECONDS",
    "UNSET",
    "Default",
    "Unset",
    "fit",
    "fraction",
    "is_given",
    "normalise",
    "refuse",
    "seconds",
]

# Huge finite limits saturate here, at about 31 years: far beyond any turn, and far enough from
# the ends of every integer the wheel counts in that adding it to "now" cannot overflow.
MAX_SECONDS: Final = 1e9


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""Stands for an argument that was not given, where `None` already means "off"."""

if TYPE_CHECKING:
    Given = Duration | Literal[Unset.UNSET]


class Default(float):
    """A limit nobody asked for. It reads as a plain number and survives `dataclasses.replace`."""

    __slots__ = ()


def seconds(value: object, *, name: str = "limit", off: str = "None") -> float | None:
    """Convert a limit to seconds; `None` means off.

    Takes anything that is a real number (int, float, Decimal, Fraction, numpy scalars) or a
    `timedelta`. `inf` is off. Finite values above `MAX_SECONDS` saturate there; positive values
    too small for a float become the smallest float, never zero. `off` is how the caller's users
    spell "off", for the message about zero.

    Raises:
        TypeError: `value` is a bool, a string or no number at all.
        ValueError: `value` is zero, negative or NaN.
    """
    if value is None:
        return None
    number = value if type(value) is float else _as_float(value, name)
    if number > 0.0:
        if number <= MAX_SECONDS:
            return number
        return None if math.isinf(number) else MAX_SECONDS
    if number == 0.0:
        raise ValueError(f"{name} must be above 0 s, got 0: to switch it off use {off}")
    raise ValueError(f"{name} must be a positive number of seconds, got {number}")


def _as_float(value: Any, name: str) -> float:
    """Return `value` as a float whose sign and finiteness are those of `value`."""
    # Duck-typed, so that importing this module does not import datetime.
    total = getattr(value, "total_seconds", None)
    if total is not None and not isinstance(value, type):
        value = total()
    # numpy has bools, strings and ticks of unknown unit that float() would happily convert.
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    real = hasattr(value, "__float__") or hasattr(value, "__index__")
    if isinstance(value, (bool, type)) or not real or kind not in tuple("iuf"):
        raise TypeError(
            f"{name} must be a number of seconds, a timedelta or None, not {type(value).__name__}"
        )
    try:
        number = float(value)
    except OverflowError:  # an int or Fraction beyond the range of a float
        return MAX_SECONDS if value > 0 else -MAX_SECONDS
    except ValueError:  # a signalling NaN
        return math.nan
    if math.isinf(number) and _is_between(value, -math.inf, math.inf):
        return math.copysign(MAX_SECONDS, number)
    if number == 0.0 and _is_between(value, 0, math.inf):
        return math.ulp(0.0)
    return number


def _is_between(value: Any, low: float, high: float) -> bool:
    """Whether a number that float() rounded away lies strictly between; False if it cannot say."""
    try:
        return bool(low < value < high)
    except TypeError:
        return False


def fraction(value: object, *, name: str, off: str = "None") -> float | None:
    """Convert a share of another limit: above 0, at most 1, or `None` for off."""
    if hasattr(value, "total_seconds"):
        raise TypeError(f"{name} is a fraction of the idle limit, not a duration")
    share = seconds(value, name=name, off=off)
    if share is not None and share > 1.0:
        raise ValueError(f"{name} is a fraction of the idle limit: above 0 and at most 1")
    return share


def normalise(limits: Any, names: Iterable[str]) -> None:
    """Turn each named field into seconds, and each missing one into its default."""
    for name in names:
        value = getattr(limits, name)
        if value is UNSET:
            value = limits.__dataclass_fields__[name].default
        elif type(value) is not Default:
            value = fraction(value, name=name) if name == "warn" else seconds(value, name=name)
        object.__setattr__(limits, name, value)


def is_given(value: float | None) -> bool:
    """Whether a caller wrote this limit. What is off cannot contradict anything."""
    return value is not None and type(value) is not Default


def fit(limits: Any, low: str, high: str) -> None:
    """Make `low` reachable below `high`: refuse if both were given, else the default goes off."""
    below, above = getattr(limits, low), getattr(limits, high)
    if below is None or above is None or below <= above:
        return
    if is_given(below) and is_given(above):
        refuse(f"{low}={below!r} s", f"{high}={above!r} s")
    object.__setattr__(limits, high if is_given(below) else low, None)


def refuse(late: str, early: str) -> NoReturn:
    """Raise for two given limits of which the first could never fire."""
    raise ValueError(f"{late} is above {early} and could never fire: lower it, or set one to None")
