"""Running what is due in an event loop.

The loop over callbacks is Python, not Rust: an interpreter that ends a daemon thread in the middle
of a callback must find no Rust frame to unwind.
"""

from __future__ import annotations

import sys
from asyncio.exceptions import CancelledError
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stallwatch._stallwatch import Bridge, Timeout

CONVERTS_SUBCLASSES: Final = sys.version_info >= (3, 13)
"""Subclasses of `CancelledError` become a `TimeoutError` too, and errors raised out of one get one
into their context."""


def attach(bridge: Bridge, loop: Any, fd: int, stale: int | None = None) -> None:
    """Has the loop call `drain` whenever `fd` is readable. Runs in the loop's own thread.

    Args:
        stale: A descriptor that the loop watches on behalf of a bridge that is no longer used.
    """
    if stale is not None:
        loop.remove_reader(stale)
    try:
        loop.add_reader(fd, drain, bridge, loop)
    except NotImplementedError:
        from stallwatch._dispatch import relay

        relay(bridge, loop, fd, drain)


def drain(bridge: Bridge, loop: Any) -> None:
    """Called by the loop when the bridge's descriptor is readable."""
    try:
        bridge.begin()
        while (callback := bridge.next_callback()) is not None:
            try:
                callback()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                report(bridge, loop, callback, error)
            # Not kept until the next one comes.
            del callback
        bridge.handle()
    except BaseException:
        # Also what an exception handler raises, or a signal between two callbacks.
        bridge.put_back()
        raise


def report(bridge: Bridge, loop: Any, callback: Any, error: BaseException) -> None:
    """Tells the loop of an error in a callback, as asyncio does for its own handles."""
    handle = bridge.handle()
    if handle is None:
        message = f"Exception in callback of a timer: {callback!r}"
        loop.call_exception_handler({"message": message, "exception": error})
        return
    from asyncio.format_helpers import _format_callback_source

    source = _format_callback_source(callback.args[0], callback.args[1:])
    message = f"Exception in callback {source}"
    loop.call_exception_handler({"message": message, "exception": error, "handle": handle})


def expire(timeout: Timeout) -> None:
    """A deadline that had passed when it was set: this is the loop's next turn."""
    cancel = timeout._expire()
    if cancel is not None:
        cancel()


def convert(kind: type[BaseException], error: BaseException | None) -> None:
    """What a block whose deadline has come does with what leaves it, as this Python's asyncio does.

    Raises:
        TimeoutError: in place of the cancel that was ours.
    """
    cancelled = kind is CancelledError
    if CONVERTS_SUBCLASSES:
        cancelled = issubclass(kind, CancelledError)
    if cancelled:
        raise TimeoutError from error
    if CONVERTS_SUBCLASSES and error is not None:
        _insert(error)
        if isinstance(error, ExceptionGroup):
            for one in error.exceptions:
                _insert(one)


def _insert(error: BaseException) -> None:
    while error.__context__ is not None:
        if isinstance(error.__context__, CancelledError):
            between = TimeoutError()
            between.__context__ = between.__cause__ = error.__context__
            error.__context__ = between
            break
        error = error.__context__
