"""Whether a scenario ended as it must. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from stallwatch import Failure, Outcome, Phase, Status
from stallwatch.cli._demo_record import Claim

TEXT = (
    "A stall is a promise of progress that nobody kept. "
    "The clock that notices it must belong to whoever made the promise."
)
"""The whole answer of the fault server."""

SLACK = 1.0
"""A busy machine may be this late with a cut; early it must never be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """How a scenario must end.

    Attributes:
        status: The outcome's status.
        cause: The kind of its cause; None for none.
        phase: The phase the outcome names.
        text: Whether text was kept: "all" (the turn's whole answer), "part" or "none".
    """

    status: Status
    cause: str | None = None
    phase: Phase = Phase.DONE
    text: str = "all"

    def __str__(self) -> str:
        return verdict(self.status, self.cause)


def verdict(status: str, cause: str | None) -> str:
    """A status and the kind of its cause in a few words."""
    return f"{status}" if cause is None else f"{status}: {cause}"


def judge(expected: Expected, outcome: Outcome | None, claims: list[Claim]) -> list[str]:
    """What is not as it must be, one line each; empty if the scenario went well."""
    if outcome is None:
        return ["the turn has no outcome"]
    cause = outcome.cause
    problems = []
    if isinstance(cause, Failure):
        problems.append(f"the body raised {cause.type}: {cause.message}")
    for what, must, got in (
        ("status", expected.status, outcome.status),
        ("cause", expected.cause, None if cause is None else cause.kind),
        ("phase", expected.phase, outcome.phase),
        ("kept text", expected.text, _kept(outcome)),
    ):
        if must != got:
            problems.append(f"{what} is {got}, not {must}")
    idle, limit = getattr(cause, "idle", None), getattr(cause, "limit", None)
    if idle is not None and limit is not None and not limit <= idle <= limit + SLACK:
        problems.append(f"{expected.cause} fired at {idle:.3f} s with a limit of {limit:g} s")
    problems += [f"does not hold: {claim.text}" for claim in claims if not claim.holds]
    return problems


def _kept(outcome: Outcome) -> str:
    if outcome.text == TEXT:
        return "all"
    if TEXT.startswith(outcome.text):
        return "part" if outcome.text else "none"
    return f"not from the answer ({outcome.text!r:.40})"
