"""Known chunk kinds of providers: what is progress, what is the end, what text a chunk carries.

Knows OpenAI chat completions and responses, Anthropic messages and Google generateContent, as SDK
objects, as dicts parsed from the wire, and as raw SSE text or bytes, and LangChain's message
chunks; any other `str` is its own text. Classes are recognised by their shape, nothing is imported.
No clock, no I/O.

`docs/chunks.md` lists every kind; `_chunks_kinds` holds the tables and the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stallwatch import _chunks_sse as sse
from stallwatch._chunks_kinds import (
    ERROR,
    KEEPALIVE,
    KINDS,
    NESTED,
    PROGRESS,
    TERMINAL,
    WRAPPER_CLASSES,
)
from stallwatch._chunks_messages import MESSAGE_CLASSES, as_chat, message_in
from stallwatch._chunks_read import (
    Memory,
    Pieces,
    ToolFragment,
    chat_flags,
    collect,
    flags_of,
    google_flags,
    has_any,
)

__all__ = ["ERROR", "KEEPALIVE", "PROGRESS", "TERMINAL", "Classifier", "Folded"]

_ITEM_FLAGS = {
    sse.ALIVE: KEEPALIVE,
    sse.META: 0,
    sse.DONE: TERMINAL,
    sse.FAILED: TERMINAL | ERROR,
    sse.OTHER: PROGRESS,
}


@dataclass(frozen=True, slots=True)
class Folded:
    """What a batch of consecutive chunks carried.

    Attributes:
        text: The answer: text and refusal of the first choice.
        reasoning: Thinking, or its summary.
        tool_args: Pieces of tool arguments in order: key of the call, its name where the chunk
            has it (with an empty piece if nothing else), the piece.
    """

    text: str = ""
    reasoning: str = ""
    tool_args: tuple[ToolFragment, ...] = ()


class Classifier:
    """Reads the chunks of one stream. Never raises: what it cannot read counts as progress.

    Attributes:
        plain_text: The stream is known to consist of plain `str` chunks: each is its own text,
            and progress if not empty. `classify` need not be called for them any more.

    Args:
        raw_sse: The chunks are known to be server-sent events as they came, cut anywhere.
    """

    __slots__ = ("_cold", "_live", "_memory", "plain_text")

    def __init__(self, *, raw_sse: bool = False) -> None:
        self.plain_text = False
        self._memory = Memory()
        # Two readings of the same wire: `classify` is ahead of `fold`, which comes when needed.
        self._live = sse.Wire(sse.SSE, raw=True) if raw_sse else None
        self._cold = sse.Wire(sse.SSE, raw=True) if raw_sse else None

    @property
    def speaks_protocol(self) -> bool:
        """Whether chunks of a known provider were seen, so that an end event is to be expected."""
        memory = self._memory
        return memory.known or memory.raw or bool(memory.seen)

    def classify(self, chunk: object) -> int:
        """Flags of the next chunk; call it once a chunk, in order.

        Args:
            chunk: What the stream gave.

        Returns:
            `PROGRESS`, `TERMINAL`, `KEEPALIVE`, `ERROR` in any sensible mix. 0 is a chunk that
            says nothing: metadata, an empty delta, a piece of an SSE line.
        """
        try:
            handler = _HANDLERS.get(type(chunk))
            if handler is None:
                handler = _learn(chunk)
            return handler(self, chunk)
        except Exception:
            # A guard must not be what breaks the stream, whatever a chunk's attributes do.
            return PROGRESS

    def fold(self, chunks: Sequence[object], *, final: bool = False) -> Folded:
        """What these chunks carried; call it with batch after batch, in order.

        Args:
            chunks: The next chunks.
            final: Nothing will follow: give what was held back because it might go on (a line
                without its newline, half a UTF-8 character).

        Returns:
            The pieces of this batch. A piece cut by the border of a batch is in the next one.
        """
        into = Pieces()
        for chunk in chunks:
            try:
                if isinstance(chunk, (str, bytes, bytearray, memoryview)):
                    self._unpack(self._cold_wire().feed(chunk), into)
                else:
                    self._collect(chunk, into)
            except Exception:
                continue  # a chunk that cannot be read carries nothing
        if final and self._cold is not None:
            self._unpack(self._cold.finish(), into)
        return Folded("".join(into.text), "".join(into.reasoning), tuple(into.tool_args))

    def text_of(self, chunk: object) -> str:
        """The answer text of one chunk: text and refusal, not reasoning; "" if none.

        An SSE chunk is read by itself here. If lines may be cut, use `fold`.
        """
        return self._single(chunk).text

    def reasoning_of(self, chunk: object) -> str:
        """The reasoning that one chunk carries; "" if none."""
        return self._single(chunk).reasoning

    def tool_args_of(self, chunk: object) -> list[ToolFragment]:
        """The pieces of tool arguments that one chunk carries."""
        return list(self._single(chunk).tool_args)

    def _single(self, chunk: object) -> Folded:
        single = Classifier()
        single._memory.raw = self._memory.raw
        single._cold = sse.Wire(self._live.mode if self._live is not None else sse.UNDECIDED)
        return single.fold((chunk,), final=True)

    def _cold_wire(self) -> sse.Wire:
        cold = self._cold
        if cold is None:
            cold = self._cold = sse.Wire()
        live = self._live
        if live is not None and live.mode == sse.PLAIN and not cold.holds_head():
            # It need not wait for the decision: a colon at the start gives its text at once.
            cold.mode = sse.PLAIN
        return cold

    def _unpack(self, items: list[sse.Item], into: Pieces) -> None:
        for kind, value in items:
            if kind == sse.WORDS:
                into.text.append(value)
            elif kind == sse.EVENT:
                collect(self._memory, value, into)

    def _collect(self, chunk: Any, into: Pieces) -> None:
        kind = type(chunk).__name__
        if kind == "ServerSentEvent":
            self._unpack(_event_items(chunk), into)
            return
        wrapped = WRAPPER_CLASSES.get(kind)
        if wrapped is not None and has_any(chunk, wrapped):
            chunk = getattr(chunk, wrapped)
        message = message_in((chunk,))
        if message is not None:
            chunk = as_chat(message)
        collect(self._memory, chunk, into)


Handler = Callable[[Classifier, Any], int]

_KNOWN_TYPES_MAX = 512
_HANDLERS: dict[type, Handler] = {}


def _learn(chunk: object) -> Handler:
    """Decide by the class of a chunk how to read it, once a class."""
    cls = type(chunk)
    if len(_HANDLERS) >= _KNOWN_TYPES_MAX:
        # Classes made at run time must not be kept alive for ever.
        _HANDLERS.clear()
    handler = _HANDLERS[cls] = _handler_for(cls, chunk)
    return handler


def _handler_for(cls: type, chunk: object) -> Handler:
    if issubclass(cls, str):
        return _text
    if issubclass(cls, (bytes, bytearray, memoryview)):
        return _bytes
    if issubclass(cls, dict):
        return _mapping
    if cls.__name__ == "ServerSentEvent":
        return _sse_event
    wrapped = WRAPPER_CLASSES.get(cls.__name__)
    if wrapped is not None and has_any(chunk, wrapped):
        return _unwrap
    if cls.__name__ in MESSAGE_CLASSES:
        return _message
    if issubclass(cls, tuple):
        return _pair
    declared = _declared(cls)
    if declared is None:
        # Fields live on the instance alone, so two chunks of this class may differ.
        return _anything if hasattr(chunk, "__dict__") else _unknown
    if "choices" in declared and "type" not in declared:
        return _chat
    if "type" in declared:
        return _typed
    if "candidates" in declared:
        return _google
    return _unknown


_TELLING = ("type", "choices", "candidates")


def _declared(cls: type) -> set[str] | None:
    """Which of the telling fields a class declares; None if it declares no fields at all."""
    fields: set[str] = set()
    any_declared = False
    for source in ("__pydantic_fields__", "model_fields", "__dataclass_fields__"):
        names = getattr(cls, source, None)
        if isinstance(names, dict):
            any_declared = True
            fields.update(name for name in _TELLING if name in names)
            break
    found = {name for name in _TELLING if hasattr(cls, name)}  # slots, properties, attrs
    fields |= found
    return fields if any_declared or found else None


def _text(classifier: Classifier, chunk: str) -> int:
    if classifier.plain_text:
        return PROGRESS if chunk else 0
    flags = _bytes(classifier, chunk)
    live = classifier._live
    if live is not None and live.mode == sse.PLAIN:
        classifier.plain_text = True
    return flags


def _bytes(classifier: Classifier, chunk: Any) -> int:
    live = classifier._live
    if live is None:
        live = classifier._live = sse.Wire()
    return _join(classifier, live.feed(chunk))


def _join(classifier: Classifier, items: list[sse.Item]) -> int:
    """The flags of all that one chunk held."""
    flags = 0
    quiet = False
    for kind, value in items:
        if kind == sse.WORDS:
            flags |= PROGRESS if value else 0
            continue
        more = flags_of(classifier._memory, value) if kind == sse.EVENT else _ITEM_FLAGS[kind]
        quiet = quiet or not more
        flags |= more
    # The blank line that ends an event makes no keep-alive of it.
    return flags & ~KEEPALIVE if quiet or flags & ~KEEPALIVE else flags


def _sse_event(classifier: Classifier, chunk: Any) -> int:
    return _join(classifier, _event_items(chunk))


def _event_items(chunk: Any) -> list[sse.Item]:
    """An SSE event that a library has taken apart already (anthropic, openai, httpx-sse)."""
    wire = sse.Wire(sse.SSE)
    data = chunk.data or ""
    name = f"event: {chunk.event}\n" if chunk.event else ""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return wire.feed(f"{name}{lines}\n")


def _unwrap(classifier: Classifier, chunk: Any) -> int:
    return classifier.classify(getattr(chunk, WRAPPER_CLASSES[type(chunk).__name__]))


def _message(classifier: Classifier, chunk: Any) -> int:
    return chat_flags(classifier._memory, as_chat(chunk))


def _pair(classifier: Classifier, chunk: tuple[Any, ...]) -> int:
    message = message_in(chunk)
    # Out of a graph, where other messages may follow.
    return PROGRESS if message is None else _message(Classifier(), message) & ~TERMINAL


def _unknown(classifier: Classifier, chunk: Any) -> int:
    return PROGRESS


def _anything(classifier: Classifier, chunk: Any) -> int:
    return flags_of(classifier._memory, chunk)


def _google(classifier: Classifier, chunk: Any) -> int:
    return google_flags(classifier._memory, chunk)


# Shortcuts. Each decides the common chunk with plain attribute access and hands anything else to
# the thorough path; anything missing raises and ends there as well.


def _chat(classifier: Classifier, chunk: Any) -> int:
    memory = classifier._memory
    try:
        choices = chunk.choices
        if len(choices) == 1:
            choice = choices[0]
            if (
                choice.finish_reason is None
                and choice.index in memory.seen
                and "error" not in chunk.__pydantic_extra__
            ):
                delta = choice.delta
                if delta.content or delta.__pydantic_extra__["reasoning_content"]:
                    return PROGRESS
    except (AttributeError, KeyError, TypeError):
        pass
    return chat_flags(memory, chunk)


# Kinds that depend on one field of the event itself.
_BY_FIELD = {
    kind: rule.fields[0] for kind, rule in KINDS.items() if len(rule.fields) == 1 and not rule.twin
}
_DELTAS = {kind: rule.fields[0] for kind, rule in NESTED["content_block_delta"][1].items()}


def _typed(classifier: Classifier, chunk: Any) -> int:
    memory = classifier._memory
    try:
        kind = chunk.type
        if kind == "content_block_delta":
            memory.raw = True
            delta = chunk.delta
            if getattr(delta, _DELTAS[delta.type]):
                return PROGRESS
        elif getattr(chunk, _BY_FIELD[kind]):
            memory.known = True
            return PROGRESS
    except (AttributeError, KeyError, TypeError):
        pass
    return flags_of(memory, chunk)


def _mapping(classifier: Classifier, chunk: Any) -> int:
    memory = classifier._memory
    try:
        kind = chunk.get("type")
        if kind is None:
            (choice,) = chunk["choices"]
            if (
                choice.get("finish_reason") is None
                and choice["index"] in memory.seen
                and "error" not in chunk
            ):
                delta = choice["delta"]
                if delta.get("content") or delta["reasoning_content"]:
                    return PROGRESS
        elif kind == "content_block_delta":
            memory.raw = True
            delta = chunk["delta"]
            if delta[_DELTAS[delta["type"]]]:
                return PROGRESS
        elif chunk[_BY_FIELD[kind]]:
            memory.known = True
            return PROGRESS
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    return flags_of(memory, chunk)
