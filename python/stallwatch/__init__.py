"""Every wait of an agent turn gets an owner and its own clock.

Who is being waited for, for how long, and what happens when they go silent? `guard` puts clocks
around a stream, `Watchdog` around an agent loop's phases, `Turn` and `run_turn` around a whole
turn. Below them is a timer wheel in Rust that needs neither the event loop nor the GIL to notice
that time is up.

Everything named here is loaded at its first use, so that `import stallwatch` costs next to nothing.
"""

# Not imported from `typing`, which alone would take longer than everything else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from stallwatch import aio as aio
    from stallwatch import faults as faults
    from stallwatch import testing as testing
    from stallwatch import wheel as wheel
    from stallwatch._active import Active, ActiveSpan, ActiveTurn, active
    from stallwatch._allowance import remaining
    from stallwatch._budget import Budget, budget
    from stallwatch._causes import (
        ChildIdleError,
        FirstChunkError,
        HardIdleError,
        PhaseViolationError,
        StallError,
        StreamBudgetError,
        StreamIdleError,
        StreamProgressError,
        ToolDeadlineError,
        TurnBudgetError,
        UserCancelled,
    )
    from stallwatch._clock_times import ClockTime
    from stallwatch._events import (
        BudgetExceeded,
        ChildIdle,
        CoverageLost,
        Event,
        FirstChunk,
        HardIdle,
        HostSuspended,
        LateResult,
        ObserverStalled,
        PhaseChanged,
        Settled,
        SoftIdle,
        StreamSlow,
        StreamStalled,
        StreamTruncated,
        ToolEnded,
        ToolStarted,
        UnboundedWait,
        Unresponsive,
    )
    from stallwatch._failure import Failure
    from stallwatch._guard import StreamGuard, guard
    from stallwatch._guard_sync import SyncStreamGuard, guard_sync
    from stallwatch._limits import Limits, PhaseLimits
    from stallwatch._outcome import Outcome, Status
    from stallwatch._owner import TurnOwner
    from stallwatch._phase_state import PhaseState
    from stallwatch._phases import Phase
    from stallwatch._retry import cause_of, giveup_if_stalled, is_retryable, retry_unless_stalled
    from stallwatch._retry_turn import retry_turn
    from stallwatch._run_turn import run_turn
    from stallwatch._stallwatch import Deadline, IdleTimer
    from stallwatch._store import MemoryStore, OutcomeStore, StoredTurn, StoreError
    from stallwatch._store_sqlite import SQLiteStore
    from stallwatch._stream_stats import Gaps, StreamStats
    from stallwatch._suggestion import Suggestion
    from stallwatch._tool_call import ToolCall
    from stallwatch._tool_record import ToolRecord, ToolState
    from stallwatch._tracker import PhaseTracker, Restore
    from stallwatch._turn import Turn
    from stallwatch._verdict import Retry, RetryVerdict
    from stallwatch._watchdog import Watchdog
    from stallwatch.child import ChildOutcome, run_child, run_child_sync
    from stallwatch.wheel import Lateness, WheelStats, wheel_stats

    __version__: str

__all__ = [
    "Active",
    "ActiveSpan",
    "ActiveTurn",
    "Budget",
    "BudgetExceeded",
    "ChildIdle",
    "ChildIdleError",
    "ChildOutcome",
    "ClockTime",
    "CoverageLost",
    "Deadline",
    "Event",
    "Failure",
    "FirstChunk",
    "FirstChunkError",
    "Gaps",
    "HardIdle",
    "HardIdleError",
    "HostSuspended",
    "IdleTimer",
    "LateResult",
    "Lateness",
    "Limits",
    "MemoryStore",
    "ObserverStalled",
    "Outcome",
    "OutcomeStore",
    "Phase",
    "PhaseChanged",
    "PhaseLimits",
    "PhaseState",
    "PhaseTracker",
    "PhaseViolationError",
    "Restore",
    "Retry",
    "RetryVerdict",
    "SQLiteStore",
    "Settled",
    "SoftIdle",
    "StallError",
    "Status",
    "StoreError",
    "StoredTurn",
    "StreamBudgetError",
    "StreamGuard",
    "StreamIdleError",
    "StreamProgressError",
    "StreamSlow",
    "StreamStalled",
    "StreamStats",
    "StreamTruncated",
    "Suggestion",
    "SyncStreamGuard",
    "ToolCall",
    "ToolDeadlineError",
    "ToolEnded",
    "ToolRecord",
    "ToolStarted",
    "ToolState",
    "Turn",
    "TurnBudgetError",
    "TurnOwner",
    "UnboundedWait",
    "Unresponsive",
    "UserCancelled",
    "Watchdog",
    "WheelStats",
    "active",
    "budget",
    "cause_of",
    "giveup_if_stalled",
    "guard",
    "guard_sync",
    "is_retryable",
    "remaining",
    "retry_turn",
    "retry_unless_stalled",
    "run_child",
    "run_child_sync",
    "run_turn",
    "wheel_stats",
]

_WHERE = {
    "_active": "Active ActiveSpan ActiveTurn active",
    "_allowance": "remaining",
    "_budget": "Budget budget",
    "_causes": (
        "ChildIdleError FirstChunkError HardIdleError PhaseViolationError StallError "
        "StreamBudgetError StreamIdleError StreamProgressError ToolDeadlineError TurnBudgetError "
        "UserCancelled"
    ),
    "_clock_times": "ClockTime",
    "_events": (
        "BudgetExceeded ChildIdle CoverageLost Event FirstChunk HardIdle HostSuspended LateResult "
        "ObserverStalled PhaseChanged Settled SoftIdle StreamSlow StreamStalled StreamTruncated "
        "ToolEnded ToolStarted UnboundedWait Unresponsive"
    ),
    "_guard": "StreamGuard guard",
    "_guard_sync": "SyncStreamGuard guard_sync",
    "_limits": "Limits PhaseLimits",
    "_failure": "Failure",
    "_outcome": "Outcome Status",
    "_owner": "TurnOwner",
    "_phase_state": "PhaseState",
    "_phases": "Phase",
    "_retry": "cause_of giveup_if_stalled is_retryable retry_unless_stalled",
    "_retry_turn": "retry_turn",
    "_run_turn": "run_turn",
    "_stallwatch": "Deadline IdleTimer __version__",
    "_store": "MemoryStore OutcomeStore StoreError StoredTurn",
    "_store_sqlite": "SQLiteStore",
    "_stream_stats": "Gaps StreamStats",
    "_suggestion": "Suggestion",
    "_tool_call": "ToolCall",
    "_tool_record": "ToolRecord ToolState",
    "_tracker": "PhaseTracker Restore",
    "_turn": "Turn",
    "_verdict": "Retry RetryVerdict",
    "_watchdog": "Watchdog",
    "child": "ChildOutcome run_child run_child_sync",
    "wheel": "Lateness WheelStats wheel_stats",
}
_HOME = {name: module for module, names in _WHERE.items() for name in names.split()}
_MODULES = ("aio", "child", "faults", "testing", "wheel")


def __getattr__(name: str) -> "Any":
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
