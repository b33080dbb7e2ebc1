"""The process that runs a turn, named so that it can be told from one that came after it.

A process id alone is reused. With the moment the process started, and the boot in which it did, it
never names another one. Nothing here asks a process anything: a stopped or a stuck one is alive.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

__all__ = ["TurnOwner"]

_PROC: Final = Path("/proc")
_GONE_STATES: Final = "ZXx"
"""States of /proc/PID/stat in which a process has ended, reaped by its parent or not."""


@dataclass(frozen=True, slots=True)
class TurnOwner:
    """Which process runs a turn: the owner of its record, as a clock has the owner of a wait.

    Attributes:
        pid: Its process id.
        start: When it started, as its system writes that; "" where it cannot be known.
        boot: The boot of its machine; "" where it cannot be known.
        namespace: What its process id is relative to, on Linux; "" elsewhere.
    """

    __module__ = "stallwatch"

    pid: int
    start: str = ""
    boot: str = ""
    namespace: str = ""

    @classmethod
    def current(cls) -> Self:
        """This process; a forked child is another one."""
        global _here
        pid = os.getpid()
        here = _here
        if here is None or here.pid != pid:
            here = _here = TurnOwner(pid, _state(pid)[1], _boot(), _namespace())
        return cls(here.pid, here.start, here.boot, here.namespace)

    def is_gone(self) -> bool:
        """Whether it is certain that this process has ended. In doubt it has not.

        In doubt is: a process of another PID namespace of this machine, as in another container,
        which cannot be seen from here; and, without a start time, one with the same id.
        """
        here = TurnOwner.current()
        if self == here:
            return False
        if self.boot and here.boot and self.boot != here.boot:
            return True
        if self.namespace != here.namespace:
            return False
        alive, start = _state(self.pid)
        return not alive or bool(self.start and start and self.start != start)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "pid": self.pid,
            "start": self.start,
            "boot": self.boot,
            "namespace": self.namespace,
        }


_here: TurnOwner | None = None


def _state(pid: int) -> tuple[bool, str]:
    """Whether a process is there, and when it started ("" if that cannot be known)."""
    if _PROC.joinpath("self", "stat").exists():
        try:
            text = _PROC.joinpath(str(pid), "stat").read_bytes().decode("ascii", "replace")
        except OSError:
            return _answers(pid), ""  # gone, or hidden from this user
        # The name in parentheses may hold anything, parentheses too.
        fields = text.rpartition(")")[2].split()
        return fields[0] not in _GONE_STATES, fields[19]
    if not _answers(pid):
        return False, ""
    return True, _started(pid)


def _answers(pid: int) -> bool:
    if os.name != "posix":
        return True  # there, `kill` would end it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _started(pid: int) -> str:
    """The start of a process where there is no /proc, to the second."""
    try:
        done = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return " ".join(done.stdout.split())


def _boot() -> str:
    try:
        return _PROC.joinpath("sys", "kernel", "random", "boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(os.readlink(_PROC / "self" / "ns" / "pid"))
    except OSError:
        return ""
