"""The native module. Private: what users may touch is exported by `stallwatch`.

Sections in the order of `src/py`.
"""

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, final

from typing_extensions import disjoint_base

from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase

__all__ = [
    "Alarm",
    "Bridge",
    "ChildHandle",
    "ChildPlan",
    "Deadline",
    "DispatchQueue",
    "IdleTimer",
    "LoopTimers",
    "ManualClock",
    "Pull",
    "PullBase",
    "SyncPull",
    "Timeout",
    "TimerHandle",
    "TrackerCore",
    "__version__",
    "bind_phases",
    "call_later",
    "frozen_until",
    "gap_edges",
    "now",
    "phase_table",
    "raw_stats",
    "set_strict_default",
    "timeout",
    "timeout_at",
]

__version__: Final[str]

_Seconds: TypeAlias = float | timedelta | None
_Callback: TypeAlias = Callable[[], object]
_OnDue: TypeAlias = Callable[[float, float, float], object]
"""Told when it was due, when that was found, and for how long the timer thread had overslept."""

# aio

@final
class Timeout:
    """Cancels the task of an `async with` block once it is overdue: see `stallwatch.aio.timeout`.

    Runs from entering the block to leaving it, on the loop's own clock. Reset by `reschedule`.
    Fires as a cancel of the task, which leaves the block as `TimeoutError`. Not affected by
    anything else.

    Args:
        when: A moment of the loop's clock, in seconds; None for never.
    """

    def __new__(cls, when: float | None) -> Self: ...
    def when(self) -> float | None:
        """The deadline on the loop's clock, or None."""

    def reschedule(self, when: float | None) -> None:
        """Moves the deadline; None takes it away.

        Raises:
            RuntimeError: outside the block, or once the deadline has come.
        """

    def expired(self) -> bool:
        """Whether the deadline has come while the block was open."""

    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> Awaitable[None]: ...
    def _expire(self) -> Callable[[], object] | None: ...

@final
class TimerHandle:
    """A callback that an event loop calls at a moment of its clock.

    Answers as an `asyncio.TimerHandle`, `isinstance` included.
    """

    def cancel(self) -> None:
        """Takes it back: the callback will not be called."""

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""

    def when(self) -> float:
        """The moment on the loop's clock, in seconds."""

    @property
    def _cancelled(self) -> bool: ...
    @property
    def _when(self) -> float: ...
    @property
    def _source_traceback(self) -> None: ...
    def __hash__(self) -> int: ...
    def __lt__(self, value: object, /) -> bool: ...
    def __le__(self, value: object, /) -> bool: ...
    def __gt__(self, value: object, /) -> bool: ...
    def __ge__(self, value: object, /) -> bool: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...

@final
class LoopTimers:
    """What stands in the place of a loop's `call_later` and `call_at`."""

    def __new__(
        cls,
        event_loop: AbstractEventLoop,
        call_later: Callable[..., Any],
        call_at: Callable[..., Any],
    ) -> Self: ...
    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """As the loop's `call_later`, on the wheel."""

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """As the loop's `call_at`, on the wheel."""

def call_later(
    event_loop: AbstractEventLoop, delay: float, callback: Callable[..., object], *args: Any
) -> TimerHandle:
    """A timer of a loop, whether or not its own methods were replaced."""

def timeout(delay: float | None) -> Timeout:
    """As `asyncio.timeout`, on the wheel: an `async with` block to be over in so many seconds.

    Args:
        delay: Seconds; None for no deadline, 0 and less for the loop's next turn.

    Raises:
        ValueError: for NaN.
    """

def timeout_at(when: float | None) -> Timeout:
    """As `asyncio.timeout_at`, on the wheel: the deadline is a moment of the loop's clock."""

# bridge

@final
class Bridge:
    """The way of one event loop to its timers."""

    def begin(self) -> None:
        """Begins a drain: empties the descriptor and takes what has fired."""

    def handle(self) -> TimerHandle | None:
        """The handle whose callback was handed out last, if that was a handle's."""

    def next_callback(self) -> _Callback | None:
        """The next callback that is due, or None.

        None as well when other things have waited long enough; the rest then comes in the loop's
        next turn.
        """

    def put_back(self) -> None:
        """Ends a drain early: the rest waits for the loop's next turn."""

# child

@final
class ChildPlan:
    """How a child is watched: durations in seconds, None for off; `progress` is a sum of bits."""

    def __new__(
        cls,
        *,
        idle: float | None,
        warn: float | None,
        budget: float | None,
        max_runtime: float | None,
        kill_grace: float | None,
        drain_grace: float | None,
        progress: int,
        cap: int,
        live: bool,
        observe_only: bool,
    ) -> Self: ...

@final
class ChildHandle:
    """A child under supervision. Ends it when it is dropped."""

    @staticmethod
    def start(
        plan: ChildPlan,
        args: Sequence[bytes],
        *,
        cwd: bytes | None,
        env: Sequence[tuple[bytes, bytes]] | None,
        stdin: bytes | Literal[True] | None,
        pty: bool,
        touch: bool,
    ) -> ChildHandle:
        """Starts a child. `stdin`: None for nothing, True for what this process reads, or bytes.

        Raises:
            OSError: as `subprocess` raises it.
        """

    @staticmethod
    def adopt(plan: ChildPlan, pid: int, fds: tuple[int, int]) -> ChildHandle:
        """Takes over a child that runs, and the descriptors of its output (-1: none)."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def bell(self) -> int:
        """A descriptor that is readable when there is something to take."""

    def hush(self) -> None:
        """Silences the bell. Then look once more."""

    def next_note(self) -> tuple[Any, ...] | None:
        """The next thing to know, or None: its name, and what belongs to it."""

    def report(self) -> dict[str, Any] | None:
        """What became of it, once and after all notes; None until then."""

    def wait(self) -> None:
        """Blocks until there may be something to take. Signal handlers run meanwhile."""

    def close(self) -> None:
        """Closes the bell: nobody will wait for it any more."""

    def end(self, *, at_once: bool = False) -> None:
        """Ends the child: with a grace, or at once."""

# clock

@final
class ManualClock:
    """A clock that moves when told: the native half of `stallwatch.testing.ManualClock`."""

    def __new__(cls, start: float) -> Self: ...
    def install(self) -> None:
        """Makes it the clock of everything made from now on.

        Raises:
            RuntimeError: if another manual clock is in place.
        """

    def uninstall(self) -> None:
        """Takes it out of place; what was made on it stays on it."""

    def now(self) -> float:
        """The moment it stands at, in seconds."""

    def next_stop(self) -> float | None:
        """The next moment at which it has to stop on its way, in seconds, or None."""

    def step(self, limit: float) -> bool:
        """Moves on to the next stop up to `limit` (seconds), and queues what is due there.

        False once there is no such stop; it then stands at `limit`.
        """

    def next_callback(self) -> _Callback | None:
        """The next callback due of a timer made outside a loop, or None."""

def now() -> float:
    """Now, in seconds, on the clock that objects made now would get."""

# dispatch

@final
class DispatchQueue:
    """What the dispatcher thread works on."""

    def wait(self) -> bool:
        """Blocks, without the GIL, until something may be due.

        False once there will be nothing any more.
        """

    def next_callback(self) -> _Callback | None:
        """The next callback that is due, or None."""

    def stop(self) -> None:
        """Ends the waiting for good."""

# guard, pull

_Numbers: TypeAlias = tuple[
    int,
    int,
    float | None,
    float | None,
    float | None,
    float | None,
    float,
    float,
    float,
    float,
]
"""Chunks, progress chunks; the moments of start, first, last heard and last progress; largest gap,
since progress, since heard; now."""

@disjoint_base
class PullBase:
    """The state of a guard's hot path."""

    def __new__(
        cls,
        first: float | None,
        idle: float | None,
        warn: float | None,
        progress: float | None,
        progress_warn: float | None,
        budget: float | None,
    ) -> Self: ...
    def _set_plain(self) -> None:
        """Every further `str` is its own text, and `_classify` is not asked about it."""

    def _set_source(self, source: AsyncIterator[Any]) -> None:
        """Sets the asynchronous iterator that is pulled from."""

    def _set_iterator(self, source: Iterator[Any]) -> None:
        """Sets the blocking iterator that is pulled from."""

    def _start_blocking(self) -> float:
        """`_start` without an event loop: fires come on the dispatcher thread."""

    def _start(self) -> float:
        """Starts the budget and gives the clocks a timer of the running loop."""

    def _judge(self) -> tuple[int, int, float, float]:
        """Judges the clocks: what (0 wait, 1 warn, 2 fire), clock, measured, limit."""

    def _warned(self, clock: int) -> bool:
        """Notes that a warning about this clock is given; False if its reason has gone."""

    def _claim(self, clock: int, verdict: object) -> bool:
        """Has a verdict carried out if it still stands: kept as `_doom`, then cut or refused."""

    def _hold(self) -> bool:
        """Ends it; a pull that is pending is one to cut then, and the result True."""

    def _rearm(self) -> None:
        """Sets the timer to the next moment of interest."""

    def _switch_off(self, clock: int) -> None:
        """Switches a clock off, for a guard that only observes."""

    def _look_again(self, after: float) -> None:
        """Sets the timer to look again in so many seconds."""

    def _forgive(self) -> None:
        """The process did not run: silence counts from now."""

    def _overlook(self) -> None:
        """As `_forgive`, of a silence that is the source's own: the statistics tell it whole."""

    def touch(self) -> None:
        """Reports a sign of life that is no chunk: a ping which only the caller sees.

        It resets `idle`, and nothing else.
        """

    def _end(self) -> None:
        """Ends it: no clock runs any more, and there is no further chunk."""

    def _refuse_next(self) -> None:
        """Has the next pull refused."""

    def _take_kept(self) -> list[Any]:
        """Chunks kept since the last time; they are handed over."""

    def _now(self) -> float:
        """Now, in seconds, on its clock."""

    @property
    def _pending(self) -> bool:
        """Whether a pull waits."""

    @property
    def _waiting(self) -> Any:
        """What the pull waits for."""

    @property
    def _task(self) -> Any:
        """The task in which it waits."""

    @property
    def _source(self) -> Any:
        """The asynchronous iterator that is pulled from."""

    @property
    def _ended(self) -> bool:
        """Whether there will be no further chunk."""

    @property
    def _terminal(self) -> bool:
        """Whether the terminal chunk has come."""

    @property
    def _interrupted(self) -> bool:
        """Whether somebody else's cancel went down into the pull that is pending."""

    @property
    def _cutting(self) -> bool:
        """Whether the `CancelledError` to come is ours."""

    @_cutting.setter
    def _cutting(self, value: bool) -> None: ...
    def _numbers(self) -> _Numbers:
        """Counts, then moments and times in seconds, None where there is none."""

    def _seen(self) -> tuple[float, float, float, list[int]]:
        """Wait for the first progress, longest wait between two, longest gap, gaps by bucket."""

class Pull(PullBase):
    """`PullBase` with the slots that run once a chunk."""

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Any]: ...

def gap_edges() -> list[float]:
    """Where each bucket of gaps ends, in seconds; the last one has no end."""

# lifecycle

def frozen_until() -> float:
    """When this process last came back from not running, on `time.monotonic()`; 0 for never."""

class SyncPull(PullBase):
    """`PullBase` with the slot of a blocking stream."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...

# phases

_Told: TypeAlias = tuple[PhaseState | None, PhaseState, str | None, str | None]
"""State before (if there was a transition), state after, first violation, refusal."""

def bind_phases(members: Sequence[Phase], state: type[PhaseState]) -> None:
    """Hand in the members of `Phase` in order and the class `PhaseState`; the first call counts."""

def phase_table() -> list[tuple[int, str, bool]]:
    """The phases as the core knows them: number, label, whether idle time is counted."""

def set_strict_default(strict: bool) -> bool:
    """Make violations raise in every tracker made from now on without `strict=`.

    The environment variable goes first. Returns the value before.
    """

@disjoint_base
class TrackerCore:
    """The core of a phase tracker: all its rules and its state."""

    def __new__(cls, *, strict: bool | None = None) -> Self: ...
    def _enter(self, phase: Phase | int) -> _Told:
        """Enter a phase."""

    def _borrow(self, phase: Phase | int, since: Literal["pause", "keep"]) -> tuple[int, _Told]:
        """Borrow a phase. The token comes first."""

    def _restore(self, token: int) -> _Told:
        """Give a borrowed phase back."""

    def _assert_clean(self) -> _Told:
        """Check that no phase is borrowed."""

    def current(self) -> PhaseState:
        """Phase, seconds in it and `seq`, as of one moment."""

    @property
    def seq(self) -> int:
        """The number of transitions so far."""

    @property
    def depth(self) -> int:
        """The number of phases borrowed and not yet given back."""

    @property
    def invalid(self) -> bool:
        """Whether there was a violation. It never becomes false again."""

    @property
    def violation(self) -> str | None:
        """The text of the first violation."""

    @property
    def strict(self) -> bool:
        """Whether violations raise."""

    @property
    def is_dirty(self) -> bool:
        """Whether there was a transition or a mark since the last `take_dirty()`."""

    def mark_dirty(self) -> None:
        """Mark the tracker as changed."""

    def take_dirty(self) -> bool:
        """Read and clear the mark.

        Checkpoint code peeks at `is_dirty`, saves, and only then takes.
        """

# wheel

@final
class IdleTimer:
    """Calls back once nobody has touched it for a whole window.

    Runs from its making, on the running event loop or, without one, on one dispatcher thread. Reset
    by `touch()`. Fires as one call of `callback`, never early. Not affected by anything else.

    Args:
        window: Seconds or a `timedelta`, above 0. None and infinity switch it off.
        callback: Called without arguments. The timer lives until then, or until it is cancelled.
        loop: The event loop it belongs to; by default the running one.
    """

    def __new__(
        cls,
        window: _Seconds,
        callback: _Callback,
        *,
        loop: AbstractEventLoop | None = None,
    ) -> Self: ...
    def touch(self) -> None:
        """Progress: the window starts again. Lock-free; allocates nothing."""

    def pause(self) -> None:
        """Stops the clock where it stands. Lock-free. Twice is harmless."""

    def resume(self) -> None:
        """Lets the clock run on with what was left of it. Without a pause it does nothing."""

    def extend(self, seconds: _Seconds) -> None:
        """Moves the present deadline `seconds` later, once; the window stays."""

    def cancel(self) -> bool:
        """Stops it for good. True if it was running or paused: the callback will not run then."""

    @property
    def window(self) -> float | None:
        """The window in seconds, or None when it is off."""

    @property
    def remaining(self) -> float | None:
        """Seconds until it fires, or None when it is off, has fired or is cancelled."""

    @property
    def active(self) -> bool:
        """Whether it can still fire."""

    @property
    def paused(self) -> bool:
        """Whether its clock stands still."""

    @property
    def inherited(self) -> bool:
        """Whether it was made by the parent process, before a fork: it never fires here."""

@final
class Deadline:
    """Calls back once, at a moment of `time.monotonic()`.

    Runs from its making, on the running event loop or, without one, on one dispatcher thread. Reset
    by nothing; `reschedule()` moves it. Fires as one call of `callback`, never early, and at once
    if the moment has passed. Not affected by anything else.

    Args:
        when: The moment in seconds. None and infinity are never.
        callback: Called without arguments. The timer lives until then, or until it is cancelled.
        loop: The event loop it belongs to; by default the running one.
    """

    def __new__(
        cls,
        when: float | None,
        callback: _Callback,
        *,
        loop: AbstractEventLoop | None = None,
    ) -> Self: ...
    def cancel(self) -> bool:
        """Stops it for good. True if it was running: the callback will not run then."""

    def reschedule(self, when: float | None) -> None:
        """Moves it to another moment. No effect once it has fired or is cancelled."""

    @property
    def when(self) -> float | None:
        """The moment it is set to, or None for never."""

    @property
    def remaining(self) -> float | None:
        """Seconds until it fires, or None when it never will."""

    @property
    def active(self) -> bool:
        """Whether it can still fire."""

    @property
    def inherited(self) -> bool:
        """Whether it was made by the parent process, before a fork: it never fires here."""

@final
class Alarm:
    """A clock's alarm: can be set again and again, and tells its callback what a judge needs."""

    def __new__(cls, callback: _OnDue, *, loop: AbstractEventLoop | None = None) -> Self: ...
    def set(self, at: float | None) -> None:
        """Sets it to a moment (seconds), wherever it stood; None takes it back."""

    def close(self) -> None:
        """Takes it back for good."""

    def now(self) -> float:
        """Now, in seconds, on its clock."""

    @property
    def active(self) -> bool:
        """Whether it is set."""

def raw_stats() -> dict[str, Any]:
    """Raw numbers of this process's wheels: see `stallwatch.wheel_stats`."""
