"""The keywords that every guard of an integration takes: those of `stallwatch.guard`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from stallwatch._seconds import Given, Unset
    from stallwatch._sink import OnEvent


class GuardOptions(TypedDict, total=False):
    """Limits and functions: `stallwatch.guard` says what each of them means."""

    first_chunk: Given
    idle: Given
    warn: float | Unset | None
    progress_idle: Given
    budget: Given
    is_progress: Callable[[Any], object] | None
    is_terminal: Callable[[Any], object] | None
    text_of: Callable[[Any], str | None] | None
    on_event: OnEvent
    name: str | None
    observe_only: bool


class SyncGuardOptions(GuardOptions, total=False):
    """As `GuardOptions`, and `abort`: `stallwatch.guard_sync` says what it means."""

    abort: Any
