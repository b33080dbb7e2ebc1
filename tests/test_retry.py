import asyncio
import concurrent.futures
import gc
import pickle
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import backoff
import pytest
import stamina
import tenacity

from stallwatch._causes import CAUSE_KINDS, StallError, StreamIdleError, UserCancelled
from stallwatch._retry import (
    cause_of,
    giveup_if_stalled,
    is_retryable,
    record_cause,
    retry_unless_stalled,
)


def chained(outer: BaseException, cause: BaseException) -> BaseException:
    """Make `raise outer from cause`."""
    try:
        raise outer from cause
    except BaseException as exc:
        return exc


def during(outer: BaseException, handled: BaseException, *, hide: bool = False) -> BaseException:
    """Raise `outer` while `handled` is being handled; `hide` is `raise outer from None`."""
    try:
        try:
            raise handled
        except BaseException:
            if hide:
                raise outer from None
            raise outer  # noqa: B904
    except BaseException as exc:
        return exc


def retry_error(exc: BaseException) -> BaseException:
    """What tenacity raises without reraise=True."""
    attempt = tenacity.Future(1)
    attempt.set_exception(exc)
    return tenacity.RetryError(attempt)


class ActivityError(Exception):
    """Shaped like Temporal's: the real error is the property `cause`."""

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__("activity failed")
        self.cause = cause


class ApplicationError(Exception):
    """Shaped like Temporal's: a type name and details that crossed the wire."""

    def __init__(self, kind: str, *details: Any) -> None:
        super().__init__("application error")
        self.type = kind
        self.details = details


class Hostile(Exception):
    """An error whose properties raise."""

    @property
    def cause(self) -> None:
        raise ValueError("not now")

    last_attempt = type = details = cause


def cyclic(tail: BaseException | None = None) -> BaseException:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    second.__context__ = tail
    second.__suppress_context__ = False
    return first


def timed_out() -> BaseException:
    """The TimeoutError of asyncio.timeout: its __cause__ is a CancelledError."""

    async def body() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    try:
        asyncio.run(body())
    except TimeoutError as exc:
        return exc
    raise AssertionError("no timeout")


STALL = StreamIdleError(idle=0.3)
USER = UserCancelled("stop")

FINDS_STALL = {
    "itself": STALL,
    "cause": chained(ValueError(), STALL),
    "deep cause": chained(KeyError(), chained(ValueError(), STALL)),
    "context": during(ValueError(), STALL),
    "context of cause": chained(KeyError(), during(ValueError(), STALL)),
    "group": ExceptionGroup("g", [ValueError(), STALL]),
    "nested group": ExceptionGroup("g", [ExceptionGroup("h", [ValueError(), STALL])]),
    "group of causes": ExceptionGroup("g", [chained(ValueError(), STALL)]),
    "cause is a group": chained(ValueError(), ExceptionGroup("g", [STALL])),
    "tenacity": retry_error(STALL),
    "tenacity over group": retry_error(ExceptionGroup("g", [STALL])),
    "temporal": ActivityError(STALL),
    "cycle": cyclic(STALL),
}

FINDS_NOTHING = {
    "plain": ValueError(),
    "hidden context": during(ValueError(), STALL, hide=True),
    "user in context": during(ValueError(), USER),
    "user below context": during(ValueError(), chained(KeyError(), USER)),
    "cancel in context": during(ValueError(), asyncio.CancelledError()),
    "cancel as cause": chained(TimeoutError(), asyncio.CancelledError()),
    "asyncio timeout": timed_out(),
    "group": ExceptionGroup("g", [ValueError(), KeyError()]),
    "cycle": cyclic(),
    "own cycle": chained(ValueError(), cyclic()),
    "temporal without cause": ActivityError(None),
    "hostile properties": Hostile(),
    "foreign type": ApplicationError("server_error"),
    "library timeout": TimeoutError("read timed out"),
}

FINDS_USER = {
    "cause": chained(TimeoutError(), USER),
    "tenacity": retry_error(USER),
    "temporal": ActivityError(USER),
    "cause of a stall's neighbour": chained(ValueError(), BaseExceptionGroup("g", [STALL, USER])),
}

NEVER = {
    "cancelled": asyncio.CancelledError(),
    "user": USER,
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(),
    "generator": GeneratorExit(),
    "group with cancel": BaseExceptionGroup("g", [ValueError(), asyncio.CancelledError()]),
    "group with user": BaseExceptionGroup("g", [ValueError(), USER]),
    "future cancelled": concurrent.futures.CancelledError(),
}


@pytest.mark.parametrize("exc", FINDS_STALL.values(), ids=FINDS_STALL)
def test_a_stall_is_found_wherever_it_hides(exc: BaseException) -> None:
    """Chains, groups and wrappers lead to the very stall, and are not retryable."""
    assert cause_of(exc) is STALL
    assert is_retryable(exc) is False
    assert giveup_if_stalled(exc) is True
    assert retry_unless_stalled(exc) is False


@pytest.mark.parametrize("exc", FINDS_NOTHING.values(), ids=FINDS_NOTHING)
def test_other_errors_stay_retryable(exc: BaseException) -> None:
    """Errors without a stall have no cause of ours; a cancel in __context__ proves nothing."""
    assert cause_of(exc) is None
    assert is_retryable(exc) is True
    assert giveup_if_stalled(exc) is False
    assert retry_unless_stalled(exc) is True


@pytest.mark.parametrize("exc", FINDS_USER.values(), ids=FINDS_USER)
def test_a_user_cancel_is_found_by_sure_links_and_wins(exc: BaseException) -> None:
    """A user's cancel is read out of causes, groups and wrappers, and beats a stall beside it."""
    assert cause_of(exc) is USER
    assert is_retryable(exc) is False


@pytest.mark.parametrize("exc", NEVER.values(), ids=NEVER)
def test_cancellation_is_never_retryable(exc: BaseException) -> None:
    """Cancels, interrupts, exits and groups that hold one are not retryable."""
    assert is_retryable(exc) is False
    assert giveup_if_stalled(exc) is True


@pytest.mark.parametrize("cls", CAUSE_KINDS.values())
def test_every_kind_is_refused_even_if_marked(cls: type[StallError]) -> None:
    """No kind of stall is retryable, not even one whose flag somebody set."""
    exc = cls()
    exc.retryable = True  # type: ignore[misc]

    assert is_retryable(exc) is False


def test_a_long_chain_needs_no_stack() -> None:
    """Thousands of links are walked without recursion."""
    exc: BaseException = STALL
    for _ in range(5000):
        outer = ValueError()
        outer.__cause__ = exc
        exc = outer

    assert cause_of(exc) is STALL


def test_a_stall_that_crossed_a_process_border() -> None:
    """An error that carries kind and fields as plain data is read back as the stall it was."""
    found = cause_of(ActivityError(ApplicationError("stream_idle", STALL.to_dict())))
    bare = cause_of(ApplicationError("child_idle"))

    assert isinstance(found, StreamIdleError)
    assert found.idle == 0.3
    assert bare is not None
    assert bare.kind == "child_idle"
    assert is_retryable(ApplicationError("stream_idle")) is False


class Source:
    """A provider that always stalls after one chunk, and counts how often it was opened."""

    def __init__(self) -> None:
        self.opened = 0

    async def stream(self) -> AsyncIterator[str]:
        self.opened += 1
        yield "a"
        raise StreamIdleError(idle=0.3, limit=0.3, partial="a")

    async def read(self) -> str:
        return "".join([chunk async for chunk in self.stream()])

    def read_sync(self) -> str:
        self.opened += 1
        raise StreamIdleError(idle=0.3, limit=0.3, partial="a")


def naive(read: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    """A runner that tries up to five times whatever calls itself retryable."""

    async def run() -> str:
        for attempt in range(5):
            try:
                return await read()
            except Exception as exc:
                if attempt == 4 or not getattr(exc, "retryable", True):
                    raise
        raise AssertionError

    return run


def combined(native: Any) -> Any:
    return tenacity.retry(
        stop=tenacity.stop_after_attempt(5), wait=tenacity.wait_none(), retry=native
    )


RUNNERS: dict[str, Callable[..., Any]] = {
    "naive": naive,
    "tenacity predicate": combined(retry_unless_stalled),
    "tenacity is_retryable": combined(tenacity.retry_if_exception(is_retryable)),
    "tenacity or": combined(
        retry_unless_stalled | tenacity.retry_if_result(lambda text: text == "again")
    ),
    "tenacity or, other side": combined(
        tenacity.retry_if_result(lambda text: text == "again") | retry_unless_stalled
    ),
    "tenacity and": combined(retry_unless_stalled & tenacity.retry_if_exception_type(RuntimeError)),
    "tenacity and, other side": combined(
        tenacity.retry_if_exception_type(RuntimeError) & retry_unless_stalled
    ),
    "stamina": stamina.retry(on=is_retryable, attempts=5, wait_initial=0, wait_jitter=0),
    "stamina predicate": stamina.retry(
        on=retry_unless_stalled, attempts=5, wait_initial=0, wait_jitter=0
    ),
    "backoff": backoff.on_exception(
        backoff.constant, Exception, max_tries=5, interval=0, jitter=None, giveup=giveup_if_stalled
    ),
}


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_a_source_that_always_stalls_is_opened_once(runner: Callable[..., Any]) -> None:
    """Under every retry library the same stall is never run into twice."""
    source = Source()

    with pytest.raises((StreamIdleError, tenacity.RetryError)) as caught:
        asyncio.run(runner(source.read)())

    assert source.opened == 1
    cause = cause_of(caught.value)
    assert isinstance(cause, StreamIdleError)
    assert cause.partial == "a"


@pytest.mark.parametrize("name", [n for n in RUNNERS if n != "naive"])
def test_a_blocking_source_is_opened_once(name: str) -> None:
    """The same holds for blocking calls."""
    source = Source()

    with pytest.raises((StreamIdleError, tenacity.RetryError)):
        RUNNERS[name](source.read_sync)()

    assert source.opened == 1


@pytest.mark.parametrize("name", [n for n in RUNNERS if n != "naive"])
def test_other_failures_are_still_retried(name: str) -> None:
    """The predicates refuse stalls, not retrying as such."""
    calls = 0

    def flaky() -> str:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("passing fault")
        return "ok"

    assert RUNNERS[name](flaky)() == "ok"
    assert calls == 3


def test_tenacity_does_not_retry_a_user_cancel() -> None:
    """tenacity catches BaseException, so the predicate must refuse a cancel itself."""
    calls = 0

    @combined(retry_unless_stalled)
    async def body() -> None:
        nonlocal calls
        calls += 1
        raise UserCancelled("stop")

    with pytest.raises((UserCancelled, tenacity.RetryError)) as caught:
        asyncio.run(body())

    assert calls == 1
    assert isinstance(cause_of(caught.value), UserCancelled)


def test_tenacity_predicate_is_quiet_about_results() -> None:
    """A call that returned is not retried, whatever it returned."""
    calls = 0

    @combined(retry_unless_stalled)
    def body() -> None:
        nonlocal calls
        calls += 1

    body()

    assert calls == 1
    assert pickle.loads(pickle.dumps(retry_unless_stalled)) is retry_unless_stalled
    assert repr(retry_unless_stalled) == "stallwatch.retry_unless_stalled"


async def finished(coroutine: Any) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait([task])
    return task


async def raising(exc: BaseException) -> None:
    raise exc


def test_cause_of_a_task() -> None:
    """A finished task is read by its exception, its cancel, or not at all."""

    async def body() -> None:
        stall, user = StreamIdleError(), UserCancelled("stop")
        assert cause_of(await finished(raising(stall))) is stall
        found = cause_of(await finished(raising(user)))
        assert isinstance(found, UserCancelled)
        assert found.reason == "stop"
        assert cause_of(await finished(raising(ValueError()))) is None
        assert cause_of(await finished(asyncio.sleep(0))) is None
        pending = asyncio.ensure_future(asyncio.sleep(60))
        assert cause_of(pending) is None
        pending.cancel()
        await asyncio.wait([pending])
        assert cause_of(pending) is None

    asyncio.run(body())


def test_cause_of_a_thread_future() -> None:
    """Futures of concurrent.futures are read the same way."""
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    assert cause_of(future) is None
    future.set_exception(STALL)
    cancelled: concurrent.futures.Future[None] = concurrent.futures.Future()
    cancelled.cancel()

    assert cause_of(future) is STALL
    assert cause_of(cancelled) is None


def test_the_record_is_read_first() -> None:
    """What gather or a task group dropped is still known from the task's record."""

    async def body() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        user = UserCancelled("stop")
        record_cause(task, user)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)

        assert type(result) is asyncio.CancelledError
        assert cause_of(result) is None
        assert cause_of(task) is user

        late = StreamIdleError(partial="abc")
        record_cause(task, late)
        assert cause_of(task) is late

    asyncio.run(body())


def test_a_swallowed_cancel_in_a_task_group_is_still_known() -> None:
    """A task group ends silently when a child raises a cancel; the child's record tells why."""

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            child = group.create_task(raising(UserCancelled("stop")))
            record_cause(child, UserCancelled("stop"))

        found = cause_of(child)
        assert isinstance(found, UserCancelled)
        assert found.reason == "stop"

    asyncio.run(body())


def test_the_record_outlives_its_cause_and_frees_its_task() -> None:
    """The record keeps all fields when the cause is dropped, and never keeps the task alive."""

    tasks: list[weakref.ref[Any]] = []

    async def body() -> None:
        task = asyncio.ensure_future(asyncio.sleep(0))
        tasks.append(weakref.ref(task))

        def fire() -> None:
            here = task  # the traceback leads from the cause to the task
            try:
                raise StreamIdleError(partial="abc", idle=0.3)
            except StallError as exc:
                record_cause(here, exc)

        fire()
        await task
        gc.collect()
        found = cause_of(task)
        assert isinstance(found, StreamIdleError)
        assert (found.partial, found.idle, found.__traceback__) == ("abc", 0.3, None)

    asyncio.run(body())
    gc.collect()
    assert tasks[0]() is None


def test_cause_of_a_turn() -> None:
    """Anything that can name its own cause is asked for it."""

    class Turn:
        cause: Any = None

        def _stallwatch_cause(self) -> Any:
            return self.cause

    turn = Turn()
    assert cause_of(turn) is None
    turn.cause = STALL
    assert cause_of(turn) is STALL


def test_cause_of_nothing_and_of_junk() -> None:
    """None has no cause; what cannot have one is refused."""
    assert cause_of(None) is None
    for junk in (1, "x", [], {}):
        with pytest.raises(TypeError):
            cause_of(junk)
