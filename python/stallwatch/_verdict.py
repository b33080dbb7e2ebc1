"""Whether a turn that has ended may be run again, judged by what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stallwatch._phases import LabelledStrEnum

__all__ = ["Retry", "RetryVerdict", "retry_verdict"]


class RetryVerdict(LabelledStrEnum):
    """What may be done with a turn that has ended.

    `never`: leave it. `before_output`: nothing had come and nothing was done, so that the whole of
    it may be run again. `resume`: something had come, or tools had run; doing all of it again would
    pay for it, or do it, twice, so continue from what is kept.
    """

    NEVER = "never"
    BEFORE_OUTPUT = "before_output"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Retry:
    """`Outcome.retry`: the verdict and why.

    Attributes:
        verdict: See `RetryVerdict`.
        reason: Why, for people.
    """

    __module__ = "stallwatch"

    verdict: RetryVerdict
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Both as plain values."""
        return {"verdict": str(self.verdict), "reason": self.reason}


_ENDS: Final = {
    "completed": "it has completed",
    "cancelled": "it was cancelled by somebody",
    "failed": "its own code raised an error, which is judged by its kind",
}


def retry_verdict(*, status: str, kind: str | None, has_output: bool, has_tools: bool) -> Retry:
    """Judge a turn.

    Args:
        status: Its `Status`.
        kind: The kind of its cause, if it has one.
        has_output: Whether anything of an answer had come.
        has_tools: Whether a tool had been started.
    """
    if status in _ENDS:
        return Retry(RetryVerdict.NEVER, _ENDS[status])
    if kind == "turn_budget":
        return Retry(RetryVerdict.NEVER, "its budget is spent, and an attempt cannot renew it")
    if has_tools:
        return Retry(RetryVerdict.RESUME, "tools had been started, and must not run twice")
    if has_output:
        return Retry(RetryVerdict.RESUME, "a part of the answer had come")
    return Retry(RetryVerdict.BEFORE_OUTPUT, "nothing of an answer had come, and no tool had run")


RetryVerdict.__module__ = "stallwatch"
