"""Running what is due in an event loop.

The loop over callbacks is Python, not Rust: an interpreter that ends a daemon thread in the middle
of a callback must find no Rust frame to unwind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwatch._stallwatch import Bridge


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
                # As asyncio does for its own handles.
                message = f"Exception in callback of a timer: {callback!r}"
                loop.call_exception_handler({"message": message, "exception": error})
            # Not kept until the next one comes.
            del callback
    except BaseException:
        # Also what an exception handler raises, or a signal between two callbacks.
        bridge.put_back()
        raise
