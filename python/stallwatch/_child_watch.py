"""One supervised child, seen from Python: notes become events and output, a report an outcome.

The core watches, decides and kills on a thread of its own. What is here runs afterwards, whenever
Python gets to it, and nothing waits for it but the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from stallwatch._causes import ChildIdleError, StallError, ToolDeadlineError
from stallwatch._child_outcome import ChildOutcome
from stallwatch._events import BudgetExceeded, ChildIdle, ObserverStalled, Unresponsive

if TYPE_CHECKING:
    from stallwatch._child_options import OnOutput, Path, Watching
    from stallwatch._sink import EventSink
    from stallwatch._stallwatch import ChildHandle

__all__ = ["OWNER", "Listener", "WatchedChild"]

OWNER = "child process"

_STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")


class Listener:
    """Where the output goes as it comes. One that raises is logged once, and not called again.

    Args:
        on_output: Called with the name of the stream and what was read.
        tee: A path, which is opened here, or a binary file.
    """

    def __init__(self, on_output: OnOutput, tee: Path | BinaryIO | None) -> None:
        if on_output is not None and not callable(on_output):
            raise TypeError(f"on_output takes a callable, not {type(on_output).__name__}")
        self._on_output = on_output
        self._file: Any = None
        self._owned = False
        if tee is not None:
            if hasattr(tee, "write"):
                self._file = tee
            else:
                self._file = open(tee, "wb", buffering=0)  # noqa: SIM115 - closed by close()
                self._owned = True

    @property
    def is_live(self) -> bool:
        """Whether anybody wants the output as it comes."""
        return self._on_output is not None or self._file is not None

    def __call__(self, stream: int, data: bytes) -> None:
        if self._file is not None:
            try:
                _write_all(self._file, data)
            except Exception:
                _log("the tee of a child's output failed: it gets nothing more")
                self.close()
        if self._on_output is not None:
            try:
                self._on_output(_STREAMS[stream], data)
            except Exception:
                _log("on_output of a child raised: it is not called again")
                self._on_output = None

    def close(self) -> None:
        """Closes what it has opened."""
        file, self._file = self._file, None
        if self._owned and file is not None:
            file.close()


def _write_all(file: Any, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        count = file.write(rest)
        # A buffered file takes all of it, and some say nothing.
        rest = rest[len(rest) if count is None else count :]


def _log(message: str) -> None:
    import logging

    logging.getLogger("stallwatch").exception(message)


class WatchedChild:
    """A child whose notes are taken one by one.

    Args:
        handle: The core's side of it.
        args: What was run.
        watching: How it is watched.
        listener: Where its output goes.
        sink: Where its events go.
        name: What it is called.
        pty: Whether it writes into a terminal.
    """

    def __init__(
        self,
        handle: ChildHandle,
        args: tuple[str, ...],
        watching: Watching,
        listener: Listener,
        sink: EventSink,
        *,
        name: str | None,
        pty: bool,
    ) -> None:
        self.handle = handle
        self._args = args
        self._watching = watching
        self._listener = listener
        self._sink = sink
        self._name = name
        self._pty = pty

    def take(self, most: int | None = None) -> bool:
        """Handle what there is to know, `most` pieces of it at once; whether there may be more."""
        taken = 0
        while (note := self.handle.next_note()) is not None:
            self._handle(*note)
            taken += 1
            if taken == most:
                return True
        return False

    def _handle(self, kind: str, *found: Any) -> None:
        if kind == "output":
            self._listener(*found)
            return
        event = self._event(kind, *found)
        if event is not None:
            self._sink.emit(event)

    def _event(self, kind: str, at: float, measured: float, late: float = 0.0, cut: bool = True):  # type: ignore[no-untyped-def]
        watching, name = self._watching, self._name
        if kind in ("quiet", "idle"):
            return ChildIdle(
                at=at,
                name=name,
                idle=measured,
                limit=watching.idle or 0.0,
                lateness=late,
                warning=kind == "quiet",
                would_have_fired=not cut,
            )
        if kind == "budget":
            return BudgetExceeded(
                at=at,
                owner=OWNER,
                name=name,
                elapsed=measured,
                limit=watching.budget or 0.0,
                lateness=late,
                would_have_fired=not cut,
            )
        if kind == "overslept":
            return ObserverStalled(at=at, lateness=measured, clock="child_idle")
        if kind == "unresponsive":
            return Unresponsive(at=at, what="child", name=name, waited=measured)
        return None

    def outcome(self, status: int | None = None) -> ChildOutcome | None:
        """What became of it, once; None until then. `status` stands in for an unknown one."""
        found = self.handle.report()
        if found is None:
            return None
        self._listener.close()
        idle = found["ended"] == "idle"
        return ChildOutcome(
            args=self._args,
            pid=self.handle.pid,
            status=status if found["status"] is None else found["status"],
            stdout=found["stdout"],
            stderr=found["stderr"],
            stdout_dropped=found["dropped"][0],
            stderr_dropped=found["dropped"][1],
            killed_for_idle=idle,
            cause=self._cause(found),
            idle=found["idle"],
            elapsed=found["elapsed"],
            escaped=tuple(found["escaped"]),
            survivors=tuple(found["survivors"]),
            drained=found["drained"],
            buffered=idle and found["busy"] and not self._pty,
            reads_stdin=found["reads_stdin"],
            timed_out_resumable=found["overran"],
            name=self._name,
        )

    def _cause(self, found: dict[str, Any]) -> StallError | None:
        kind: type[StallError]
        if found["ended"] == "idle":
            kind, limit = ChildIdleError, self._watching.idle
        elif found["ended"] == "budget":
            kind, limit = ToolDeadlineError, self._watching.budget
        else:
            return None
        return kind(
            owner=OWNER,
            name=self._name,
            idle=found["measured"],
            limit=limit,
            lateness=found["late"],
        )
