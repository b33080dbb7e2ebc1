"""The ten phases of a turn, and the enum bases that print their labels."""

from enum import IntEnum, StrEnum
from typing import Final

__all__ = ["LabelledIntEnum", "LabelledStrEnum", "Phase"]


class LabelledIntEnum(IntEnum):
    """An integer enum that shows its label wherever it is shown to a person.

    `str()`, `format()` and f-strings give the label, format specs included; `Cls("label")` finds
    the member again, so that stored text can be read back. Comparison, hashing and arithmetic
    stay those of `int`.
    """

    @property
    def label(self) -> str:
        """The member's name in lower case, as it appears in events, records and logs."""
        return self.name.lower()

    def __str__(self) -> str:
        return self.label

    def __format__(self, spec: str) -> str:
        return format(self.label, spec)

    @classmethod
    def _missing_(cls, value: object) -> "LabelledIntEnum | None":
        if isinstance(value, str):
            for member in cls:
                if member.label == value:
                    return member
        return None


class LabelledStrEnum(StrEnum):
    """A string enum whose value is its label; `str()`, `format()` and f-strings give it."""

    @property
    def label(self) -> str:
        """The member's value: the same word in events, records and logs."""
        return self.value


class Phase(LabelledIntEnum):
    """The blocking stage an agent loop is in: exactly one at a time."""

    __module__ = "stallwatch"

    INIT = 0
    SETUP = 1
    AWAITING_LLM = 2
    RETRYING_LLM = 3
    COMPACTING = 4
    AWAITING_APPROVAL = 5
    EXECUTING_TOOLS = 6
    INJECTING_MESSAGE = 7
    FORCE_STOP = 8
    DONE = 9

    @property
    def idle_counted(self) -> bool:
        """Whether silence in this phase counts as the model being idle."""
        return self is Phase.AWAITING_LLM or self is Phase.FORCE_STOP

    @property
    def owner(self) -> str:
        """Who promised progress while this phase lasts."""
        return _OWNERS[self]


_OWNERS: Final = (
    "loop construction",
    "local initialisation",
    "turn watchdog",
    "retry policy",
    "compaction coordinator",
    "a human",
    "each tool's own clock",
    "follow-up injection",
    "turn watchdog",
    "nobody",
)
