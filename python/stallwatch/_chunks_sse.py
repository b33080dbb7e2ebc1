"""Takes text or bytes chunks apart: plain text, or server-sent events cut anywhere.

What the chunks of a stream are is not declared, so it is decided by the first chunk that tells:
a line that starts like an SSE field makes it SSE, other text makes it plain text. Comment lines
before that are held, since a plain text may start with a colon as well.

SSE arrives framed in one of two ways. Raw: the text as it came, cut anywhere, so lines are joined
until their newline. Lines: a reader such as `aiter_lines` already took the newlines off, so each
chunk is a line and must not wait for a newline that never comes. A first chunk without a newline
can be either; it is taken for a line, and taken back (`_continue`) if the next one continues it.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

UNDECIDED = 0
PLAIN = 1
SSE = 2

# Items that `Wire.feed` gives: (kind, value).
ALIVE = 0  # comment, blank line, ping: None
META = 1  # id, event name, part of a line: None
WORDS = 2  # text as it is: str
EVENT = 3  # a parsed event: dict
DONE = 4  # the `[DONE]` line: None
FAILED = 5  # an event named `error`: None
OTHER = 6  # not understood, but something: None

Item = tuple[int, Any]

FIELDS = ("data:", "event:", "id:", "retry:")
PINGS = frozenset({"ping", "keepalive", "keep-alive", "heartbeat"})

_MARK = "\ufeff"
_NEWLINE = re.compile(r"\r\n|\n|\r")
# A byte stream that starts with a colon and shows no newline for this long is no SSE.
_MAX_HEAD_LINE = 256

_UNKNOWN, _RAW, _LINES = 0, 1, 2


class Wire:
    """One reading of one stream's text or bytes chunks, fed in order.

    Attributes:
        mode: `UNDECIDED`, `PLAIN` or `SSE`. May be set beforehand by who knows it already.

    Args:
        mode: The same.
        raw: It is known to be framed as it came.
    """

    __slots__ = (
        "_decode",
        "_event",
        "_framing",
        "_head",
        "_held",
        "_last",
        "_last_kind",
        "_open",
        "_skip_lf",
        "_sure",
        "_tail",
        "_words",
        "mode",
    )

    def __init__(self, mode: int = UNDECIDED, *, raw: bool = False) -> None:
        self.mode = mode
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []  # chunks before the decision
        self._open = ""  # their last line, if it had no newline
        self._framing = _RAW if raw else _UNKNOWN
        self._tail: list[str] = []  # raw: the line that has no newline yet
        self._sure = raw  # raw: a newline was seen, it is not a guess
        self._skip_lf = False  # raw: the last chunk ended in CR, its LF may follow
        self._last = ""  # lines: the last line, in case it was only the start of one
        self._last_kind = ALIVE
        self._event = ""  # the `event:` name in force
        self._held: list[str] = []  # data lines that look like JSON cut over several lines
        self._words = 0  # data lines of this event that were given as words

    def feed(self, chunk: str | bytes | bytearray | memoryview) -> list[Item]:
        """The items that this chunk completes."""
        if isinstance(chunk, str):
            text, whole = chunk, True
        else:
            text, whole = self._decode.decode(bytes(chunk)), False
            if not text and chunk:
                return [(OTHER if self.mode == PLAIN else META, None)]  # part of a character
        if self.mode == PLAIN:
            return [(WORDS, text)] if text else []
        if self.mode == SSE:
            return self._sse(text)
        return self._first(text, whole)

    def holds_head(self) -> bool:
        """Whether chunks wait for the decision."""
        return bool(self._head)

    def finish(self) -> list[Item]:
        """What was still held when the stream ended or was cut. Half an event gives nothing."""
        text = self._decode.decode(b"", True)
        if self.mode == PLAIN:
            return [(WORDS, text)] if text else []
        if self.mode == UNDECIDED:
            head, self._head = "".join(self._head) + text, []
            return [(WORDS, head)] if head.strip("\r\n") and head[0] != ":" else []
        if self._held:
            value, self._held = "\n".join(self._held), []
            return self._parse(value) or []
        line, self._tail = "".join(self._tail) + text, []
        value = line[5:].lstrip(" ") if line.startswith("data:") else ""
        return self._line(line) if value and not _like_json(value) else []

    def _first(self, chunk: str, whole: bool) -> list[Item]:
        text = chunk if self._head else chunk.removeprefix(_MARK)
        self.mode = _decide(text, whole, started=bool(self._head))
        # Bytes may cut a line: look at it joined before calling it plain text. But a colon after a
        # comment opens the next comment, from a reader that took the newlines off.
        joined = text if whole or self._open[:1] == text[:1] == ":" else self._open + text
        if self.mode != SSE and text:
            self.mode = _decide(joined, whole, started=bool(self._head))
        if self.mode == UNDECIDED:
            if not text:
                return []
            self._open = _NEWLINE.split(joined)[-1]
            if whole or len(self._open) <= _MAX_HEAD_LINE:
                self._head.append(chunk)
                return [(META if text[0] not in ":\r\n" else ALIVE, None)]
            self.mode = PLAIN
        head, self._head = [*self._head, chunk], []
        if self.mode == PLAIN:
            return [(WORDS, piece) for piece in head if piece]
        head[0] = head[0].removeprefix(_MARK)
        return [item for piece in head for item in self._sse(piece)]

    def _sse(self, text: str) -> list[Item]:
        broken = _NEWLINE.search(text) is not None
        if self._framing == _RAW:
            if self._sure or broken:
                self._sure = True
            elif not text or text.startswith(FIELDS):
                # No newline ever came and here is a new line: they were lines, if odd ones.
                self._framing = _LINES
                line, self._tail = "".join(self._tail), []
                return self._line(line) + self._whole(text)
            return self._raw(text)
        if self._framing == _UNKNOWN:
            self._sure = broken
            # The first bytes of a line may be too few to be one.
            broken = broken or not text.startswith((*FIELDS, ":"))
            self._framing = _RAW if broken else _LINES
            return self._raw(text) if broken else self._whole(text)
        if text[:1] in ("\r", "\n") or not self._starts_line(text):
            return self._continue(text)
        if broken:
            self._framing, self._sure = _RAW, True
            return self._raw(text)
        return self._whole(text)

    def _starts_line(self, text: str) -> bool:
        """Whether a chunk in lines framing is a line of its own rather than more of the last."""
        if not text or text.startswith(FIELDS):
            return True
        # A colon is far more often a cut inside JSON than a comment inside an event.
        if text[0] == ":" and not self._held:
            return True
        if not self._last or self._last_kind in (EVENT, DONE, FAILED, OTHER):
            return True
        return self._last_kind == ALIVE and not self._last.startswith((":", "data:"))

    def _whole(self, line: str) -> list[Item]:
        items = self._line(line)
        self._last = line
        self._last_kind = items[-1][0] if items else META
        return items

    def _continue(self, text: str) -> list[Item]:
        """The last chunk was no whole line after all: this one carries on with it."""
        end = _NEWLINE.search(text)
        head = text[: end.start()] if end else text
        items: list[Item] = []
        if self._last_kind == WORDS:
            items = [(WORDS, head)] if head else []
            self._last += head
        elif head:
            if self._held:
                self._held.pop()
            elif self._words and self._last.startswith("data:"):
                self._words -= 1  # an empty data line, which was none
            if end is None:
                self._framing = _RAW
                self._tail = [self._last, head]
                return [(META, None)]
            items = self._line(self._last + head)
        if end is None:
            return items
        self._framing, self._sure = _RAW, True
        self._skip_lf = end.group() == "\r" and end.end() == len(text)
        rest = text[end.end() :]
        return items + self._raw(rest) if rest else items or [(ALIVE, None)]

    def _raw(self, text: str) -> list[Item]:
        if self._skip_lf and text:
            self._skip_lf = False
            text = text.removeprefix("\n")
        if not text:
            return []
        self._skip_lf = text[-1] == "\r"
        first, *lines = _NEWLINE.split(text)
        self._tail.append(first)
        if not lines:
            start = self._tail[0]
            value = start[5:].lstrip(" ") if start.startswith("data:") else ""
            return [(OTHER if value and not _like_json(value) else META, None)]
        lines.insert(0, "".join(self._tail))
        last = lines.pop()
        self._tail = [last] if last else []
        return [item for line in lines for item in self._line(line)]

    def _line(self, line: str) -> list[Item]:
        if not line:
            return self._dispatch()
        if line[0] == ":":
            return [(ALIVE, None)]
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            return self._data(value)
        if name == "event":
            items = self._release()
            self._event = value.strip()
            return items or [(ALIVE if self._event in PINGS else META, None)]
        if name in ("id", "retry"):
            return [(META, None)]
        if line[0] == "{":
            # Some gateways put a bare error object between the events.
            return self._data(line)
        return [(OTHER, None)]

    def _data(self, value: str) -> list[Item]:
        if self._event in PINGS:
            return [(ALIVE, None)]
        if self._event == "error":
            return [(FAILED, None)]
        if self._held:
            self._held.append(value)
            return [(META, None)]
        if value.startswith("[DONE]"):
            return [(DONE, None)]
        if _like_json(value):
            parsed = self._parse(value)
            if parsed is None:
                self._held = [value]
                return [(META, None)]
            return parsed
        self._words += 1
        if self._words > 1:  # lines of one event are one text
            return [(WORDS, "\n" + value)]
        return [(WORDS, value)] if value else [(ALIVE, None)]

    def _parse(self, value: str) -> list[Item] | None:
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if type(parsed) is not dict:
            return [(OTHER, None)]
        if self._event and "type" not in parsed:
            parsed["type"] = self._event
        return [(EVENT, parsed)]

    def _dispatch(self) -> list[Item]:
        items = self._release()
        self._event = ""
        self._words = 0
        return items or [(ALIVE, None)]

    def _release(self) -> list[Item]:
        if not self._held:
            return []
        value, self._held = "\n".join(self._held), []
        return self._parse(value) or [(WORDS, value)]


def _like_json(value: str) -> bool:
    return value.lstrip()[:1] in ("{", "[")


def _decide(text: str, whole: bool, *, started: bool) -> int:
    """What a text that starts at the start of a line is.

    Args:
        text: One chunk, or for bytes the open line and the chunk.
        whole: A `str` chunk: it is not cut inside a field name.
        started: Comments came before, so that blank lines belong to SSE.
    """
    lines = _NEWLINE.split(text)
    for number, line in enumerate(lines, 1):
        if line.startswith(FIELDS):
            return SSE
        if not line:
            continue
        if line[0] == ":":
            started = True
            continue
        if not whole and number == len(lines) and any(name.startswith(line) for name in FIELDS):
            return UNDECIDED
        return PLAIN
    return PLAIN if text and whole and not started else UNDECIDED
