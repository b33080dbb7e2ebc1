"""Values made plain: for records that must be JSON, and for durations in messages."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

__all__ = ["duration", "plain"]


def plain(value: Any) -> Any:
    """Return `value` made of JSON types; enums become their label, anything unknown its text."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Enum):
        return str(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    return str(value)


def duration(seconds: float) -> str:
    """Write seconds without any number above 99, which retry code could take for a status."""
    if seconds < 1.0:
        return f"{seconds:.2f} s" if seconds >= 0.01 else f"{max(seconds, 0.0) * 1000:.1f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(min(seconds, 1e9)), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 100 else "over 99 h"
