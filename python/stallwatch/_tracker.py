"""`PhaseTracker`: the rules are in Rust; telling others what happened is here.

The native core only answers with what it did. Listeners, the logger and exceptions are reached
from a Python frame: an interpreter on its way out ends daemon threads wherever they run Python
code, and one that has native frames below it would take the process with it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase
from stallwatch._stallwatch import TrackerCore, bind_phases

if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger
    from types import TracebackType
    from typing import TypeAlias

    Listener: TypeAlias = Callable[[PhaseState | None, PhaseState, str | None], object]
    Told: TypeAlias = tuple[PhaseState | None, PhaseState, str | None, str | None]

__all__ = ["PhaseTracker", "Restore"]

bind_phases(list(Phase), PhaseState)


class PhaseTracker(TrackerCore):
    """Which phase a turn is in, since when, and how often that has changed.

    Thread-safe. Phases are entered one after another; a transient phase is borrowed and given
    back, and borrows nest. Three things are violations: entering a phase while one is borrowed,
    giving back in the wrong order, and a phase still borrowed at `assert_clean()`. The first marks
    the tracker invalid for good, and no clock that reads an invalid tracker ever fires. In strict
    mode a violation raises `PhaseViolationError` before anything changes. Otherwise the first is
    logged and the turn goes on: an entered phase is entered and ends all borrowing, a phase that
    is given back too early takes the ones borrowed inside it along.

        tracker = PhaseTracker()
        tracker.enter(Phase.AWAITING_LLM)
        with tracker.enter_transient(Phase.AWAITING_APPROVAL):
            ...  # not charged to the model
        tracker.assert_clean()

    Args:
        strict: whether violations raise. `None` asks the environment
            (`STALLWATCH_PHASE_STRICT`, 1 or 0), then the default of the process, which is no,
            and yes under pytest.
    """

    __module__ = "stallwatch"
    __slots__ = ("__weakref__", "_at_end", "_listeners")

    _listeners: list[Listener]
    _at_end: list[Callable[[], object]]

    def __init__(self, *, strict: bool | None = None) -> None:
        # `strict` went to the core, in `__new__`.
        self._listeners = []
        self._at_end = []  # called before phases are looked at for the last time

    def enter(self, phase: Phase | int) -> None:
        """Enter a phase. Its time starts anew and `seq` grows, also when it is the current one."""
        self._tell(self._enter(phase))

    def enter_transient(
        self, phase: Phase | int, *, since: Literal["pause", "keep"] = "pause"
    ) -> Restore:
        """Borrow a phase until the `Restore` is called or its `with` block ends.

        Args:
            phase: the phase to be in meanwhile.
            since: what becomes of the outer phase's time. With "pause" the borrowed time is not
                charged to it; with "keep" it runs on.
        """
        token, told = self._borrow(phase, since)
        try:
            self._tell(told)
        except BaseException:
            # The caller never sees the `Restore`, so nobody else could give the phase back.
            self._restore(token)
            raise
        return Restore(self, token)

    def assert_clean(self) -> None:
        """Call it at the end of a run: no phase may still be borrowed.

        In strict mode it also raises an earlier violation again, in case somebody swallowed it.
        """
        for callback in self._at_end:
            callback()
        self._tell(self._assert_clean())

    def _watch(self, callback: Listener) -> None:
        """Call `callback(previous, state, violation)` for each transition and the first violation.

        One operation is one call, on its own thread, once no lock is held. `previous` is the state
        that ended, or `None` if there was no transition; `violation` is the text, if this was the
        first. Calls of two threads can come in the other order; `seq` tells.
        """
        self._listeners.append(callback)

    def _unwatch(self, callback: Listener) -> None:
        """Stop calling it. One that is not called is nothing to stop."""
        with suppress(ValueError):
            self._listeners.remove(callback)

    def _tell(self, told: Told, *, beside: BaseException | None = None) -> None:
        """Tell listeners first, as they take clocks out of service; then raise, or log.

        Args:
            told: what the core answered.
            beside: an exception that is on its way and must get through.
        """
        previous, state, violation, refusal = told
        if previous is not None or violation is not None:
            # A copy: a listener may remove itself.
            for callback in tuple(self._listeners):
                try:
                    callback(previous, state, violation)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:
                    _log().exception("a listener of the phase tracker raised: %r", callback)
        if refusal is not None:
            if beside is None:
                # Only here: the causes import asyncio.
                from stallwatch._causes import PhaseViolationError

                raise PhaseViolationError(refusal)
            _log().warning("phase violation beside %r: %s", beside, refusal)
        elif violation is not None:
            _log().warning("phase tracker invalid, clocks that read it are off: %s", violation)


class Restore:
    """Gives a borrowed phase back: call it, or use it as a context manager. Twice does no harm."""

    __module__ = "stallwatch"
    __slots__ = ("__weakref__", "_token", "_tracker")

    def __init__(self, tracker: PhaseTracker, token: int) -> None:
        self._tracker = tracker
        self._token = token

    def __call__(self) -> None:
        """Bring the outer phase back."""
        self._give_back(None)

    def __enter__(self) -> Restore:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The block's exception always goes on. It may be a cancel, and a violation that took its
        # place would swallow it; so the violation is logged then.
        self._give_back(exc)

    def _give_back(self, beside: BaseException | None) -> None:
        self._tracker._tell(self._tracker._restore(self._token), beside=beside)


def _log() -> Logger:
    # Only here: most programs never get to it.
    import logging

    return logging.getLogger("stallwatch")
