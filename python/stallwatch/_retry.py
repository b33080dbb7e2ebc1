"""Whether to try again, and why something ended: both look through chains, groups and wrappers.

How an exception can hide another one, and what each link is worth:

- `__cause__`, members of a group, tenacity's `RetryError.last_attempt`, Temporal's `.cause`: the
  hidden one is the reason of the outer one.
- `__context__`, unless suppressed: the outer one happened while the hidden one was handled. A
  stall there still counts. A cancel there proves nothing: one lies below every read timeout that
  httpx or anyio raise on asyncio.
"""

from asyncio.exceptions import CancelledError
from collections.abc import Iterator, MutableMapping
from concurrent.futures import CancelledError as FutureCancelledError
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

from stallwatch._causes import CAUSE_KINDS, StallError, UserCancelled

__all__ = [
    "cause_of",
    "giveup_if_stalled",
    "is_retryable",
    "record_cause",
    "retry_unless_stalled",
]


def is_retryable(exc: BaseException) -> bool:
    """Whether trying again may help: the one predicate behind all others.

    False for every cancellation and whatever else is no `Exception`, and false if a stall, or a
    user's cancel, is the error itself, its cause, or part of a group; true for anything else, so
    combine it with a condition on the errors you do want to retry.

    Fits as it is wherever a predicate on the exception is taken: `stamina.retry(on=is_retryable)`,
    `tenacity.retry_if_exception(is_retryable)`, LangGraph's `RetryPolicy(retry_on=is_retryable)`,
    LangChain's `with_retry(retry_if_exception_type=is_retryable)`.
    """
    if not isinstance(exc, Exception) or isinstance(exc, FutureCancelledError):
        return False
    return _find(exc) is None


def giveup_if_stalled(exc: BaseException) -> bool:
    """The opposite of `is_retryable`, as `backoff.on_exception(..., giveup=...)` wants it."""
    return not is_retryable(exc)


class _RetryUnlessStalled:
    """`is_retryable` as a tenacity `retry=` argument, and as a plain predicate on an exception.

    Combines with tenacity's own conditions by `|` and `&`. tenacity is imported only for that.
    """

    __module__ = "stallwatch"
    __slots__ = ()

    def __call__(self, state: Any) -> bool:
        if isinstance(state, BaseException):
            return is_retryable(state)
        if state.outcome is None or not state.outcome.failed:
            return False
        return is_retryable(state.outcome.exception())

    def __and__(self, other: Any) -> Any:
        return self._native() & other

    def __or__(self, other: Any) -> Any:
        return self._native() | other

    def __repr__(self) -> str:
        return "stallwatch.retry_unless_stalled"

    def __reduce__(self) -> str:
        return "retry_unless_stalled"

    @staticmethod
    def _native() -> Any:
        from tenacity import retry_if_exception

        return retry_if_exception(is_retryable)


retry_unless_stalled: Final = _RetryUnlessStalled()


def cause_of(obj: Any) -> StallError | UserCancelled | None:
    """Return why `obj` (an exception, a task or future, or a turn) ended early, or None.

    The record that the turn or task keeps is read first: `gather`, task groups and
    `asyncio.timeout` can drop a `CancelledError` subclass on the way. Then the exception is
    searched, nearest link first. A user's cancel beats a stall found at the same distance, and is
    never read out of `__context__`.
    """
    if obj is None:
        return None
    own = getattr(obj, "_stallwatch_cause", None)
    if own is not None:
        found: StallError | UserCancelled | None = own()
        return found
    if isinstance(obj, BaseException):
        return _find(obj)
    recorded = _recorded(obj)
    if recorded is not None:
        return recorded
    error = _outcome_error(obj)
    return None if error is None else _find(error)


def record_cause(task: Any, cause: StallError | UserCancelled) -> None:
    """Note on `task` why it is being ended, for `cause_of`; a later note replaces an earlier one.

    The note does not keep the task alive, although tracebacks lead from a cause to its task: it
    holds the cause weakly, beside a bare copy for the time after the cause itself is gone.
    Record again after `annotate()`, so that the copy is complete.
    """
    _records[task] = (ref(cause), type(cause)(*cause.args))


_Record = tuple["ReferenceType[StallError | UserCancelled]", StallError | UserCancelled]
_records: MutableMapping[Any, _Record] = WeakKeyDictionary()


def _recorded(task: Any) -> StallError | UserCancelled | None:
    try:
        alive, copy = _records[task]
    except (KeyError, TypeError):  # no note, or nothing that notes can be kept on
        return None
    original = alive()
    return copy if original is None else original


def _outcome_error(future: Any) -> BaseException | None:
    """The error a finished task or future holds; None while it runs, or if it holds a result."""
    done = getattr(future, "done", None)
    if done is None or not hasattr(future, "exception"):
        raise TypeError(
            f"cause_of() takes an exception, a task, a future or a turn, not "
            f"{type(future).__name__}"
        )
    if not done():
        return None
    try:
        error: BaseException | None = future.exception()
    except (CancelledError, FutureCancelledError) as cancelled:
        return cancelled
    return error


def _find(exc: BaseException) -> StallError | UserCancelled | None:
    """Search level by level, so that the nearest cause wins and cycles end."""
    level = [(exc, False)]
    seen: set[tuple[int, bool]] = set()
    while level:
        found: StallError | UserCancelled | None = None
        for item, in_context in level:
            if isinstance(item, UserCancelled):
                if not in_context:
                    return item
            elif found is None:
                found = item if isinstance(item, StallError) else _travelled(item)
        if found is not None:
            return found
        below = []
        for item, in_context in level:
            for hidden, by_context in _links(item):
                key = (id(hidden), in_context or by_context)
                if key not in seen:
                    seen.add(key)
                    below.append((hidden, key[1]))
        level = below
    return None


def _links(exc: BaseException) -> Iterator[tuple[BaseException, bool]]:
    if isinstance(exc, BaseExceptionGroup):
        for member in exc.exceptions:
            yield member, False
    if exc.__cause__ is not None:
        yield exc.__cause__, False
    for wrapped in (_attribute(exc, "cause"), _last_attempt(exc)):
        if isinstance(wrapped, BaseException):
            yield wrapped, False
    if exc.__context__ is not None and not exc.__suppress_context__:
        yield exc.__context__, True


def _attribute(exc: BaseException, name: str) -> Any:
    # Somebody else's property, read while an error is being handled: it must not add another.
    try:
        return getattr(exc, name, None)
    except Exception:
        return None


def _last_attempt(exc: BaseException) -> BaseException | None:
    attempt = _attribute(exc, "last_attempt")
    if attempt is None or not hasattr(attempt, "exception") or not hasattr(attempt, "done"):
        return None
    return _outcome_error(attempt)


def _travelled(exc: BaseException) -> StallError | None:
    """The stall inside an error that crossed a process border as its kind and `to_dict()`."""
    kind = _attribute(exc, "type")
    if not isinstance(kind, str) or kind not in CAUSE_KINDS:
        return None
    details = _attribute(exc, "details")
    for detail in details if isinstance(details, (list, tuple)) else ():
        if isinstance(detail, dict) and detail.get("kind") == kind:
            return StallError.from_dict(detail)
    return CAUSE_KINDS[kind]()


for _public in (cause_of, giveup_if_stalled, is_retryable):
    _public.__module__ = "stallwatch"
del _public
