"""What became of a supervised child."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stallwatch._plain import plain

if TYPE_CHECKING:
    from stallwatch._causes import StallError

__all__ = ["ChildOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """How a supervised child ended, and what it wrote.

    Attributes:
        args: What was run.
        pid: The number it had.
        status: Its exit status, or minus the number of the signal that ended it. None if it is not
            known: it did not end, or somebody else has taken its status.
        stdout: What it wrote there: all of it, or the head and the tail if it is more than
            `max_output` bytes. With `pty=True` both streams are in here.
        stderr: The same for standard error.
        stdout_dropped: How many bytes between head and tail of `stdout` were not kept.
        stderr_dropped: The same for `stderr`.
        killed_for_idle: Whether it was killed because it gave no sign of life.
        cause: Why it was killed: a `ChildIdleError`, or a `ToolDeadlineError` for its budget. None
            if it ended by itself, whatever its status.
        idle: Seconds of silence at its end.
        elapsed: Seconds it lived.
        escaped: Descendants that were found outside its session.
        survivors: Descendants that were killed and did not go away within 2 s. A process can be
            out of reach inside the kernel.
        drained: Whether its output was read to the end; false if something still held a pipe open
            when `drain_grace` was over.
        buffered: Whether it was killed for silence although its processes were at work, into a
            plain pipe: its output may sit in its own buffer. `pty=True`, `progress=(..., "cpu")`,
            or unbuffered output of the child (`python -u`) help.
        reads_stdin: Whether it was killed while it waited for its standard input.
        timed_out_resumable: Whether it ran longer than `max_runtime`.
        name: The name it was given.
    """

    __module__ = "stallwatch"

    args: tuple[str, ...]
    pid: int
    status: int | None
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    killed_for_idle: bool = False
    cause: StallError | None = None
    idle: float = 0.0
    elapsed: float = 0.0
    escaped: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()
    drained: bool = True
    buffered: bool = False
    reads_stdin: bool = False
    timed_out_resumable: bool = False
    name: str | None = None
    encoding: str = "utf-8"

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with status 0."""
        return self.cause is None and self.status == 0

    @property
    def stdout_text(self) -> str:
        """`stdout` as text: what is none becomes U+FFFD; dropped bytes are named in their place."""
        return _text(self.stdout, self.stdout_dropped, self.encoding)

    @property
    def stderr_text(self) -> str:
        """`stderr` as text, in the same way."""
        return _text(self.stderr, self.stderr_dropped, self.encoding)

    @property
    def hint(self) -> str | None:
        """What may have been behind the silence, for a person; None if nothing is known."""
        if self.reads_stdin:
            return "it was waiting for its standard input"
        if self.buffered:
            return "it was at work: its output may be in its own buffer (try pty=True)"
        return None

    def check(self) -> ChildOutcome:
        """Return the outcome itself, or raise `cause` if the child was killed.

        Raises:
            StallError: `cause`.
        """
        if self.cause is not None:
            raise self.cause
        return self

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values; the outputs as text."""
        found = {name: plain(getattr(self, name)) for name in _PLAIN}
        found["cause"] = None if self.cause is None else self.cause.to_dict()
        found["stdout"], found["stderr"] = self.stdout_text, self.stderr_text
        found["hint"] = self.hint
        return found


_PLAIN = tuple(
    name
    for name in ChildOutcome.__dataclass_fields__
    if name not in ("cause", "stdout", "stderr", "encoding")
)


def _text(data: bytes, dropped: int, encoding: str) -> str:
    if not dropped:
        return data.decode(encoding, "replace")
    half = len(data) - len(data) // 2
    head, tail = data[:half].decode(encoding, "replace"), data[half:].decode(encoding, "replace")
    return f"{head}\n[{dropped} bytes dropped]\n{tail}"
