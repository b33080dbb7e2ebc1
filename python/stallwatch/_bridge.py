"""Running what is due in an event loop.

The loop over callbacks is Python, not Rust: an interpreter that ends a daemon thread in the middle of a
callback must find no Rust frame to unwind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwatch._stallwatch import Bridge


def drain(bridge: Bridge, loop: Any) -> None:
    """Called by the loop when the bridge's descriptor is readable."""
    bridge.begin()
    while (callback := bridge.next_callback()) is not None:
        try:
            callback()
        except (KeyboardInterrupt, SystemExit):
            bridge.put_back()
            raise
        except BaseException as error:
            # As asyncio does for its own handles.
            loop.call_exception_handler(
                {"message": f"Exception in callback of a timer: {callback!r}", "exception": error}
            )
        # Not kept until the next one comes.
        del callback
