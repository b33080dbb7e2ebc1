"""What the bytes of a response say, without a word of it being changed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from stallwatch._chunks import PROGRESS, Classifier
from stallwatch._text import Transcript

__all__ = ["Bytes", "EventBytes", "Events", "can_read"]

EVENTS: Final = "text/event-stream"

_DEFLATED: Final = frozenset({"gzip", "x-gzip", "deflate"})


def can_read(headers: Any) -> bool:
    """Whether a body consists of events, in an encoding that the standard library undoes."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == EVENTS and _encoding(headers) in (*_DEFLATED, "", "identity")


def _encoding(headers: Any) -> str:
    return str(headers.get("content-encoding", "")).strip().lower()


class Bytes(Transcript):
    """A body of whatever kind: every chunk is progress, and none is kept."""

    __slots__ = ()

    is_plain = False
    expects_end = False

    def classify(self, chunk: object) -> int:
        """Progress: what came last is all that is known."""
        return PROGRESS

    def fold(self, chunks: Sequence[Any], *, final: bool = False) -> None:
        """Takes no text from it."""


class EventBytes(Transcript):
    """A body of events, as bytes cut anywhere: its end and its text are known.

    Attributes:
        flags: What the last chunk was as a part of the events; as bytes it is always progress.
    """

    __slots__ = ("_cold", "_live", "flags")

    is_plain = False

    def __init__(self, headers: Any) -> None:
        super().__init__()
        self._classifier = Classifier(raw_sse=True)
        encoding = _encoding(headers)
        # The text is taken later than the flags, and needs its own reading.
        self._live, self._cold = _decoder(encoding), _decoder(encoding)
        self.flags = 0

    def classify(self, chunk: Any) -> int:
        """Progress, and whatever else it is."""
        self.flags = super().classify(self._live(chunk))
        return self.flags | PROGRESS

    def fold(self, chunks: Sequence[Any], *, final: bool = False) -> None:
        """Takes the text of the events."""
        super().fold([self._cold(chunk) for chunk in chunks], final=final)


class Events(Transcript):
    """The same body one guard further up, where only progress of the events counts.

    Args:
        below: What read the bytes.
        text: Gives all the text so far.
    """

    __slots__ = ("_below", "_said")

    is_plain = False
    expects_end = False  # the guard of the bytes says so

    def __init__(self, below: EventBytes, text: Callable[[], str]) -> None:
        super().__init__()
        self._below = below
        self._said = text

    def classify(self, chunk: object) -> int:
        """What the guard below has just read."""
        return self._below.flags

    def fold(self, chunks: Sequence[Any], *, final: bool = False) -> None:
        """The text is taken below."""

    @property
    def text(self) -> str:
        """The text so far."""
        return self._said()

    @property
    def tool_args(self) -> dict[str, dict[str, Any]] | None:
        """As read below."""
        return self._below.tool_args


def _decoder(encoding: str) -> Callable[[bytes], bytes]:
    if encoding not in _DEFLATED:
        return _same
    inflater: Any = None

    def inflate(chunk: bytes) -> bytes:
        nonlocal inflater
        if inflater is None:
            # Both headers are known by their first byte; deflate is often sent without one.
            bare = encoding == "deflate" and chunk[:1] and chunk[0] & 0x0F != 8
            inflater = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
        try:
            plain: bytes = inflater.decompress(chunk)
        except zlib.error:
            # The client will find it broken; here it is a sign of life.
            return b""
        return plain

    return inflate


def _same(chunk: bytes) -> bytes:
    return chunk
