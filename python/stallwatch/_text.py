"""What a guarded stream said: which chunks were progress or the end, and the text they carried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stallwatch._chunks import PROGRESS, TERMINAL, Classifier


class Transcript:
    """Reads the chunks of one stream, with the user's own functions in place of ours where given.

    A user's function that raises is a bug of theirs which must not end the stream: the native half
    shows it, and takes the chunk for progress.
    """

    __slots__ = (
        "_classifier",
        "_is_progress",
        "_is_terminal",
        "_parts",
        "_reasoning",
        "_text_of",
        "_tools",
    )

    def __init__(
        self,
        *,
        is_progress: Callable[[Any], object] | None = None,
        is_terminal: Callable[[Any], object] | None = None,
        text_of: Callable[[Any], str | None] | None = None,
    ) -> None:
        self._classifier = Classifier()
        self._is_progress = is_progress
        self._is_terminal = is_terminal
        self._text_of = text_of
        self._parts: list[str] = []
        self._reasoning: list[str] = []
        self._tools: dict[str, dict[str, Any]] = {}

    @property
    def is_plain(self) -> bool:
        """Every further `str` chunk is its own text, and nobody else is to be asked about it."""
        own = self._is_progress is None and self._is_terminal is None
        return own and self._classifier.plain_text

    @property
    def expects_end(self) -> bool:
        """Whether a stream like this one has an event that says it is over."""
        return self._is_terminal is not None or self._classifier.speaks_protocol

    def classify(self, chunk: object) -> int:
        """Flags of the next chunk, as of `Classifier.classify`."""
        flags = self._classifier.classify(chunk)
        if self._is_progress is not None:
            flags = flags | PROGRESS if self._is_progress(chunk) else flags & ~PROGRESS
        if self._is_terminal is not None:
            flags = flags | TERMINAL if self._is_terminal(chunk) else flags & ~TERMINAL
        return flags

    def fold(self, chunks: Sequence[Any], *, final: bool = False) -> None:
        """Takes the next chunks into the text."""
        if self._text_of is not None:
            for chunk in chunks:
                self._parts.append(self._text_of(chunk) or "")
            return
        if self._classifier.plain_text and not final:
            try:
                self._parts.append("".join(chunks))
            except TypeError:
                pass  # something else among the text
            else:
                return
        if chunks or final:
            folded = self._classifier.fold(chunks, final=final)
            self._parts.append(folded.text)
            if folded.reasoning:
                self._reasoning.append(folded.reasoning)
            for key, name, piece in folded.tool_args:
                tool = self._tools.setdefault(str(key), {"name": None, "arguments": ""})
                tool["name"] = name or tool["name"]
                tool["arguments"] += piece

    @property
    def text(self) -> str:
        """The text so far."""
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning)

    @property
    def tool_args(self) -> dict[str, dict[str, Any]] | None:
        """Tool arguments so far, as text, by call; None if there were none."""
        return self._tools or None
