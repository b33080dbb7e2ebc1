from collections.abc import Sequence
from typing import Literal, Self, TypeAlias

from typing_extensions import disjoint_base

from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase

__version__: str

# phases

_Told: TypeAlias = tuple[PhaseState | None, PhaseState, str | None, str | None]
"""State before (if there was a transition), state after, first violation, refusal."""

def bind_phases(members: Sequence[Phase], state: type[PhaseState]) -> None:
    """Hand in the members of `Phase` in order and the class `PhaseState`; the first call counts."""

def phase_table() -> list[tuple[int, str, bool]]:
    """The phases as the core knows them: number, label, whether idle time is counted."""

def set_strict_default(strict: bool) -> bool:
    """Make violations raise in every tracker made from now on without `strict=`.

    The environment variable goes first. Returns the value before.
    """

@disjoint_base
class TrackerCore:
    """The core of a phase tracker: all its rules and its state."""

    def __new__(cls, *, strict: bool | None = None) -> Self: ...
    def _enter(self, phase: Phase | int) -> _Told:
        """Enter a phase."""

    def _borrow(self, phase: Phase | int, since: Literal["pause", "keep"]) -> tuple[int, _Told]:
        """Borrow a phase. The token comes first."""

    def _restore(self, token: int) -> _Told:
        """Give a borrowed phase back."""

    def _assert_clean(self) -> _Told:
        """Check that no phase is borrowed."""

    def current(self) -> PhaseState:
        """Phase, seconds in it and `seq`, as of one moment."""

    @property
    def seq(self) -> int:
        """The number of transitions so far."""

    @property
    def depth(self) -> int:
        """The number of phases borrowed and not yet given back."""

    @property
    def invalid(self) -> bool:
        """Whether there was a violation. It never becomes false again."""

    @property
    def violation(self) -> str | None:
        """The text of the first violation."""

    @property
    def strict(self) -> bool:
        """Whether violations raise."""

    @property
    def is_dirty(self) -> bool:
        """Whether there was a transition or a mark since the last `take_dirty()`."""

    def mark_dirty(self) -> None:
        """Mark the tracker as changed."""

    def take_dirty(self) -> bool:
        """Read and clear the mark.

        Checkpoint code peeks at `is_dirty`, saves, and only then takes.
        """
