"""Child processes, supervised by what they show of themselves.

A child that talks is never killed, however long it takes; one that is hung is not waited for; and
nothing of it is left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Literal

from stallwatch._child_options import MAX_OUTPUT, PIPES, Command, OnOutput, Path, Watching
from stallwatch._child_outcome import ChildOutcome
from stallwatch._child_wait import wait_blocking, wait_in_loop
from stallwatch._child_watch import Listener, WatchedChild
from stallwatch._seconds import UNSET
from stallwatch._sink import EventSink, OnEvent

if TYPE_CHECKING:
    from stallwatch._seconds import Given

__all__ = ["ChildOutcome", "run_child", "run_child_sync"]


async def run_child(
    args: Sequence[Path] | Path,
    *,
    idle: Given = UNSET,
    budget: Given = None,
    kill_grace: Given = 5.0,
    drain_grace: Given = 5.0,
    progress: Iterable[str] = PIPES,
    cwd: Path | None = None,
    env: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
    input: bytes | None = None,  # noqa: A002 - as `subprocess` calls it
    stdin: Literal["closed", "inherit"] | bytes = "closed",
    max_output: int | None = MAX_OUTPUT,
    on_output: OnOutput = None,
    tee: Path | BinaryIO | None = None,
    pty: bool = False,
    max_runtime: Given = None,
    name: str | None = None,
    on_event: OnEvent = None,
    observe_only: bool = False,
) -> ChildOutcome:
    """Run a child process until it ends or has been silent for too long; say what became of it.

    | clock | runs | reset by | fires as |
    |---|---|---|---|
    | `idle` | from start to exit | each sign of life (`progress`) | kill; `ChildIdleError` |
    | `budget` | from start to exit | nothing | kill; `ToolDeadlineError` |

    Not affected by: the event loop, the GIL, the wall clock, the end of a pipe (which is neither an
    exit nor a sign of life), and time in which `on_output` keeps the child waiting. An exit is
    looked for before silence is blamed. At half of `idle` a `ChildIdle` event with `warning=True`
    is emitted, once for each silence.

    The child runs in a session of its own. To kill means: TERM to its group and to every descendant
    that can be found, `kill_grace`, KILL, and 2 s for that. What it leaves behind in its session
    when it exits by itself is ended in the same way; a descendant in another session is left alone
    then. If the task that awaits this is cancelled, the child is killed first. The outcome is
    returned and not raised: `outcome.check()` raises.

    Args:
        args: The program and its arguments; a lone string or path is a program without any.
        idle: Seconds of silence; None: no clock. By default `STALLWATCH_CHILD_IDLE` (seconds or
            `off`), else 300.
        budget: Seconds of life; by default no clock.
        kill_grace: Seconds between TERM and KILL; None: no KILL.
        drain_grace: Seconds for which the output is read on after the exit, while a descendant
            still holds a pipe; None: until it is closed.
        progress: The signs of life: "stdout", "stderr", "cpu" (CPU time of the child and its
            descendants grows), "touch" (the child writes to the descriptor named in its variable
            `STALLWATCH_TOUCH_FD`).
        cwd: Directory to start in.
        env: Environment; by default that of this process.
        input: What the child reads from standard input; it is fed while its output is read.
        stdin: "closed" (nothing to read), "inherit", or bytes as with `input`.
        max_output: Bytes kept of each stream, half of them from its end; None: all.
        on_output: Called in the loop with "stdout" or "stderr" and bytes, in order. While 1 MiB
            waits for it nothing more is read. One that raises is logged once and not called again.
        tee: A path or a binary file that gets the output as it comes.
        pty: Let it write into a pseudo terminal, both streams into one, so that it does not buffer.
        max_runtime: Seconds after which the outcome is marked `timed_out_resumable`.
        name: What it is called in events and in the cause.
        on_event: Where its events go: `ChildIdle`, `BudgetExceeded`, `ObserverStalled`,
            `Unresponsive`. Without any, to the log.
        observe_only: Report, and kill nothing.

    Raises:
        FileNotFoundError: no such program, or directory.
        PermissionError: it may not be run.
        ValueError: a limit that is 0, negative or NaN.
    """
    watched = _start(
        Watching.of(
            idle=idle,
            budget=budget,
            kill_grace=kill_grace,
            drain_grace=drain_grace,
            progress=progress,
            max_output=max_output,
            max_runtime=max_runtime,
            observe_only=observe_only,
        ),
        Command.of(
            args, cwd=cwd, env=env, input=input, stdin=stdin, pty=pty, touch="touch" in progress
        ),
        Listener(on_output, tee),
        EventSink(on_event),
        name,
    )
    return await wait_in_loop(watched)


def run_child_sync(
    args: Sequence[Path] | Path,
    *,
    idle: Given = UNSET,
    budget: Given = None,
    kill_grace: Given = 5.0,
    drain_grace: Given = 5.0,
    progress: Iterable[str] = PIPES,
    cwd: Path | None = None,
    env: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
    input: bytes | None = None,  # noqa: A002 - as `subprocess` calls it
    stdin: Literal["closed", "inherit"] | bytes = "closed",
    max_output: int | None = MAX_OUTPUT,
    on_output: OnOutput = None,
    tee: Path | BinaryIO | None = None,
    pty: bool = False,
    max_runtime: Given = None,
    name: str | None = None,
    on_event: OnEvent = None,
    observe_only: bool = False,
) -> ChildOutcome:
    """Run a child process, as `run_child` does, and block until it is over. For any thread.

    `on_output` and `on_event` are called in this thread. An exception of a signal handler
    (`KeyboardInterrupt`) ends the child before it is raised; a second one does so at once.
    """
    watched = _start(
        Watching.of(
            idle=idle,
            budget=budget,
            kill_grace=kill_grace,
            drain_grace=drain_grace,
            progress=progress,
            max_output=max_output,
            max_runtime=max_runtime,
            observe_only=observe_only,
        ),
        Command.of(
            args, cwd=cwd, env=env, input=input, stdin=stdin, pty=pty, touch="touch" in progress
        ),
        Listener(on_output, tee),
        EventSink(on_event),
        name,
    )
    return wait_blocking(watched)


def _start(
    watching: Watching,
    command: Command,
    listener: Listener,
    sink: EventSink,
    name: str | None,
) -> WatchedChild:
    from stallwatch._stallwatch import ChildHandle

    try:
        handle = ChildHandle.start(
            watching.plan(live=listener.is_live),
            list(command.args),
            cwd=command.cwd,
            env=command.env,
            stdin=command.stdin,
            pty=command.pty,
            touch=command.touch,
        )
    except BaseException:
        listener.close()
        raise
    return WatchedChild(handle, command.words, watching, listener, sink, name=name, pty=command.pty)


for _public in (run_child, run_child_sync):
    _public.__module__ = "stallwatch"
