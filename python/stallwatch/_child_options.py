"""What a caller says about a child, checked and made into what the core takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from stallwatch._limits import Limits
from stallwatch._seconds import UNSET, Default, fit, seconds

if TYPE_CHECKING:
    from stallwatch._seconds import Given
    from stallwatch._stallwatch import ChildPlan

__all__ = ["MAX_OUTPUT", "PIPES", "Command", "OnOutput", "Path", "Progress", "Watching"]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Progress = Literal["stdout", "stderr", "cpu", "touch"]
OnOutput = Callable[[Literal["stdout", "stderr"], bytes], object] | None

MAX_OUTPUT: Final = 16 * 2**20
"""Bytes kept of each stream by default."""

PIPES: Final[tuple[Progress, ...]] = ("stdout", "stderr")
"""What counts as a sign of life by default."""

_SIGNS: Final[Mapping[str, int]] = {"stdout": 1, "stderr": 2, "cpu": 4, "touch": 8}

_VARIABLE: Final = "STALLWATCH_CHILD_IDLE"


def _idle_of_env() -> float | None:
    return Limits.from_env({_VARIABLE: os.environ.get(_VARIABLE, "")}).child_idle


@dataclass(slots=True)
class _Clocks:
    idle: float | None
    budget: float | None

    def __post_init__(self) -> None:
        fit(self, "idle", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """How a child is watched.

    Attributes:
        idle: Seconds of silence it is allowed; None without a clock.
        budget: Seconds it may live; None without a clock.
    """

    idle: float | None
    warn: float | None
    budget: float | None
    max_runtime: float | None
    kill_grace: float | None
    drain_grace: float | None
    progress: tuple[str, ...]
    max_output: int | None
    observe_only: bool

    @classmethod
    def of(
        cls,
        *,
        idle: Given,
        budget: Given,
        kill_grace: Given,
        drain_grace: Given,
        progress: Iterable[str],
        max_output: int | None,
        max_runtime: Given,
        observe_only: bool,
    ) -> Watching:
        """Check what a caller gave."""
        if idle is UNSET:
            found = _idle_of_env()
            silence: float | None = None if found is None else Default(found)
        else:
            silence = seconds(idle, name="idle")
        clocks = _Clocks(silence, seconds(budget, name="budget"))
        silence = None if clocks.idle is None else float(clocks.idle)
        return cls(
            idle=silence,
            warn=None if silence is None else silence / 2,
            budget=clocks.budget,
            max_runtime=seconds(max_runtime, name="max_runtime"),
            kill_grace=seconds(kill_grace, name="kill_grace"),
            drain_grace=seconds(drain_grace, name="drain_grace"),
            progress=_signs(progress),
            max_output=_cap(max_output),
            observe_only=bool(observe_only),
        )

    def plan(self, *, live: bool) -> ChildPlan:
        """The same for the core; `live`: the output is wanted as it comes."""
        from stallwatch._stallwatch import ChildPlan

        return ChildPlan(
            idle=self.idle,
            warn=self.warn,
            budget=self.budget,
            max_runtime=self.max_runtime,
            kill_grace=self.kill_grace,
            drain_grace=self.drain_grace,
            progress=sum(_SIGNS[name] for name in self.progress),
            cap=_UNCAPPED if self.max_output is None else self.max_output,
            live=live,
            observe_only=self.observe_only,
        )


_UNCAPPED: Final = 2**62


def _signs(progress: Iterable[str]) -> tuple[str, ...]:
    given = (progress,) if isinstance(progress, str) else tuple(progress)
    for name in given:
        if name not in _SIGNS:
            raise ValueError(f"progress takes {', '.join(map(repr, _SIGNS))}, not {name!r}")
    return tuple(dict.fromkeys(given))


def _cap(max_output: int | None) -> int | None:
    if max_output is None:
        return None
    if isinstance(max_output, bool) or not hasattr(max_output, "__index__"):
        raise TypeError(f"max_output must be a number of bytes, not {type(max_output).__name__}")
    if max_output < 0:
        raise ValueError(f"max_output must be 0 or more bytes, got {max_output}")
    return max_output.__index__()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is run, and with what around it."""

    args: tuple[bytes, ...]
    cwd: bytes | None
    env: list[tuple[bytes, bytes]] | None
    stdin: bytes | Literal[True] | None
    pty: bool
    touch: bool

    @classmethod
    def of(
        cls,
        args: Sequence[Path] | Path,
        *,
        cwd: Path | None,
        env: Mapping[str, str] | Mapping[bytes, bytes] | None,
        input: bytes | None,  # noqa: A002 - as `subprocess` calls it
        stdin: Literal["closed", "inherit"] | bytes,
        pty: bool,
        touch: bool,
    ) -> Command:
        """Check what a caller gave."""
        alone = isinstance(args, (str, bytes, os.PathLike))
        words: Sequence[Path] = (args,) if alone else tuple(args)  # type: ignore[arg-type,assignment]
        if not words:
            raise ValueError("args is empty: there is nothing to run")
        return cls(
            args=tuple(os.fsencode(word) for word in words),
            cwd=None if cwd is None else os.fsencode(cwd),
            env=None if env is None else [_variable(k, v) for k, v in env.items()],
            stdin=_stdin(input, stdin),
            pty=bool(pty),
            touch=touch,
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The command as text."""
        return tuple(os.fsdecode(word) for word in self.args)


def _variable(name: str | bytes, value: str | bytes) -> tuple[bytes, bytes]:
    found = os.fsencode(name), os.fsencode(value)
    if not found[0] or b"=" in found[0] or b"\0" in found[0]:
        raise ValueError("illegal environment variable name")
    return found


def _stdin(given: bytes | None, stdin: Any) -> bytes | Literal[True] | None:
    if given is not None:
        if stdin != "closed":
            raise ValueError("stdin and input may not both be used")
        stdin = given
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        return bytes(stdin)
    if stdin in ("closed", None):
        return None
    if stdin == "inherit":
        return True
    raise ValueError(f"stdin takes 'closed', 'inherit' or bytes, not {stdin!r}")
