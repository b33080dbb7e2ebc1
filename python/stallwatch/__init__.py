"""Every wait of an agent turn gets an owner and its own clock.

Who is being waited for, for how long, and what happens when they go silent? `guard` puts clocks around
a stream, `Watchdog` around an agent loop's phases, `Turn` and `run_turn` around a whole turn. Below them
is a timer wheel in Rust that needs neither the event loop nor the GIL to notice that time is up.

Everything named here is loaded at its first use, so that `import stallwatch` costs next to nothing.
"""

from __future__ import annotations

# Not imported from `typing`, which alone would take longer than everything else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from stallwatch import testing as testing
    from stallwatch._causes import ChildIdleError as ChildIdleError
    from stallwatch._causes import FirstChunkError as FirstChunkError
    from stallwatch._causes import HardIdleError as HardIdleError
    from stallwatch._causes import PhaseViolationError as PhaseViolationError
    from stallwatch._causes import StallError as StallError
    from stallwatch._causes import StreamBudgetError as StreamBudgetError
    from stallwatch._causes import StreamIdleError as StreamIdleError
    from stallwatch._causes import StreamProgressError as StreamProgressError
    from stallwatch._causes import ToolDeadlineError as ToolDeadlineError
    from stallwatch._causes import TurnBudgetError as TurnBudgetError
    from stallwatch._causes import UserCancelled as UserCancelled
    from stallwatch._events import BudgetExceeded as BudgetExceeded
    from stallwatch._events import ChildIdle as ChildIdle
    from stallwatch._events import CoverageLost as CoverageLost
    from stallwatch._events import Event as Event
    from stallwatch._events import FirstChunk as FirstChunk
    from stallwatch._events import HardIdle as HardIdle
    from stallwatch._events import HostSuspended as HostSuspended
    from stallwatch._events import LateResult as LateResult
    from stallwatch._events import ObserverStalled as ObserverStalled
    from stallwatch._events import PhaseChanged as PhaseChanged
    from stallwatch._events import Settled as Settled
    from stallwatch._events import SoftIdle as SoftIdle
    from stallwatch._events import StreamSlow as StreamSlow
    from stallwatch._events import StreamStalled as StreamStalled
    from stallwatch._events import StreamTruncated as StreamTruncated
    from stallwatch._events import ToolEnded as ToolEnded
    from stallwatch._events import ToolStarted as ToolStarted
    from stallwatch._events import UnboundedWait as UnboundedWait
    from stallwatch._events import Unresponsive as Unresponsive
    from stallwatch._guard import StreamGuard as StreamGuard
    from stallwatch._guard import guard as guard
    from stallwatch._limits import Limits as Limits
    from stallwatch._limits import PhaseLimits as PhaseLimits
    from stallwatch._outcome import Failure as Failure
    from stallwatch._outcome import Outcome as Outcome
    from stallwatch._outcome import Status as Status
    from stallwatch._phase_state import PhaseState as PhaseState
    from stallwatch._phases import Phase as Phase
    from stallwatch._retry import cause_of as cause_of
    from stallwatch._retry import giveup_if_stalled as giveup_if_stalled
    from stallwatch._retry import is_retryable as is_retryable
    from stallwatch._retry import retry_unless_stalled as retry_unless_stalled
    from stallwatch._run_turn import run_turn as run_turn
    from stallwatch._stallwatch import Deadline as Deadline
    from stallwatch._stallwatch import IdleTimer as IdleTimer
    from stallwatch._stream_stats import StreamStats as StreamStats
    from stallwatch._tracker import PhaseTracker as PhaseTracker
    from stallwatch._tracker import Restore as Restore
    from stallwatch._turn import Turn as Turn
    from stallwatch._watchdog import Watchdog as Watchdog
    from stallwatch.wheel import Lateness as Lateness
    from stallwatch.wheel import WheelStats as WheelStats
    from stallwatch.wheel import wheel_stats as wheel_stats

    __version__: str

_WHERE = {
    "_causes": (
        "ChildIdleError FirstChunkError HardIdleError PhaseViolationError StallError "
        "StreamBudgetError StreamIdleError StreamProgressError ToolDeadlineError TurnBudgetError "
        "UserCancelled"
    ),
    "_events": (
        "BudgetExceeded ChildIdle CoverageLost Event FirstChunk HardIdle HostSuspended LateResult "
        "ObserverStalled PhaseChanged Settled SoftIdle StreamSlow StreamStalled StreamTruncated "
        "ToolEnded ToolStarted UnboundedWait Unresponsive"
    ),
    "_guard": "StreamGuard guard",
    "_limits": "Limits PhaseLimits",
    "_outcome": "Failure Outcome Status",
    "_phase_state": "PhaseState",
    "_phases": "Phase",
    "_retry": "cause_of giveup_if_stalled is_retryable retry_unless_stalled",
    "_run_turn": "run_turn",
    "_stallwatch": "Deadline IdleTimer __version__",
    "_stream_stats": "StreamStats",
    "_tracker": "PhaseTracker Restore",
    "_turn": "Turn",
    "_watchdog": "Watchdog",
    "wheel": "Lateness WheelStats wheel_stats",
}
_HOME = {name: module for module, names in _WHERE.items() for name in names.split()}
_MODULES = ("faults", "testing", "wheel")

__all__ = [  # noqa: PLE0604, RUF022
    *sorted(set(_HOME) - {"__version__"}),
    "testing",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOME:
        value = getattr(import_module(f"stallwatch.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"stallwatch.{name}")
    raise AttributeError(f"module 'stallwatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
