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
        "_is_over",
        "_is_progress",
        "_is_terminal",
        "_parts",
        "_reasoning",
        "_text_of",
        "_tools",
        "_translate",
    )

    def __init__(
        self,
        *,
        is_progress: Callable[[Any], object] | None = None,
        is_terminal: Callable[[Any], object] | None = None,
        text_of: Callable[[Any], str | None] | None = None,
    ) -> None:
        self._classifier = Classifier()
        self._is_over: Callable[[], object] | None = None
        self._translate: Callable[[Any], Any] | None = None
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
        if self._is_over is not None:
            return not self._is_over()
        return self._is_terminal is not None or self._classifier.speaks_protocol

    @property
    def is_over(self) -> bool:
        """Whether the source has heard the last word, although no chunk said so."""
        return self._is_over is not None and bool(self._is_over())

    def adapt(
        self,
        *,
        translate: Callable[[Any], Any] | None = None,
        is_over: Callable[[], object] | None = None,
    ) -> None:
        """For a source with chunks of its own making.

        Args:
            translate: Gives the chunk of a known kind that stands for one of the source's.
            is_over: Whether the source has heard the last word, if it has no chunk that says so:
                asked once a clock has run out, and at the end.
        """
        self._translate = translate
        self._is_over = is_over

    def classify(self, chunk: object) -> int:
        """Flags of the next chunk, as of `Classifier.classify`."""
        known = chunk if self._translate is None else self._translate(chunk)
        flags = self._classifier.classify(known)
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
            if self._translate is not None:
                chunks = [self._translate(chunk) for chunk in chunks]
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
