"""One coherent reading of a phase tracker."""

from typing import NamedTuple

from ._phases import Phase

__all__ = ["PhaseState"]


class PhaseState(NamedTuple):
    """The phase a turn is in, the seconds it has been in it, and the number of transitions so far.

    All three belong to the same moment. `seq` names this instance of the phase: it grows with
    every transition and never repeats.
    """

    phase: Phase
    elapsed: float
    seq: int


PhaseState.__module__ = "stallwatch"
