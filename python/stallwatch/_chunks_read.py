"""Reads one parsed chunk, a dict off the wire or an SDK object alike, by the tables of kinds.

Everything here is the thorough path. `_chunks` keeps shortcuts for the few shapes that make up
nearly all chunks of a stream; they must agree with this file, and a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stallwatch._chunks_kinds import (
    CHAT_DELTA,
    ERROR,
    GOOGLE_PART,
    KINDS,
    NESTED,
    NOTHING,
    PROGRESS,
    TERMINAL,
    TEXT,
    TOOL_ARGS,
    TOOL_START,
    WRAPPERS,
    Rule,
    nested_rule,
)

# The APIs cap choices at 128; a hostile peer must not make the sets grow without end.
_MAX_CHOICES = 1024

ToolFragment = tuple[str, str | None, str]
"""Key of the call within its stream, its name if the chunk has it, the piece of the arguments."""


class Memory:
    """What has to be remembered between the chunks of one stream.

    Attributes:
        known: An event was seen whose kind we know.
        raw: A raw event was seen, so the twins of a helper stream are repetition.
        seen: Indices of the choices seen.
        ended: Indices of the choices that gave a finish reason.
    """

    __slots__ = ("ended", "known", "raw", "seen")

    def __init__(self) -> None:
        self.known = False
        self.raw = False
        self.seen: set[int] = set()
        self.ended: set[int] = set()

    def note(self, index: object, *, ended: bool) -> bool:
        """Record a choice and hand `ended` back."""
        if type(index) is not int:
            index = 0
        if len(self.seen) < _MAX_CHOICES or index in self.seen:
            self.seen.add(index)
            if ended:
                self.ended.add(index)
        return ended

    def complete(self) -> bool:
        """Whether every choice seen so far has ended."""
        return len(self.ended) == len(self.seen)


class Pieces:
    """Collects what a run of chunks carried."""

    __slots__ = ("reasoning", "text", "tool_args")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.tool_args: list[ToolFragment] = []


def field(holder: Any, name: str) -> Any:
    """The field of a dict or object, None if it has none.

    A miss on a pydantic model goes through its `__getattr__` and builds an error text, which takes
    microseconds, so instance and extra fields are looked up where they live.
    """
    if type(holder) is dict:
        return holder.get(name)
    if holder is None:
        return None
    if isinstance(holder, dict):
        return holder.get(name)
    own = getattr(holder, "__dict__", None)
    if type(own) is dict:
        if name in own:
            return own[name]
        if hasattr(type(holder), "__pydantic_fields_set__"):
            extra = holder.__pydantic_extra__
            return extra.get(name) if type(extra) is dict else None
    return getattr(holder, name, None)


def either(holder: Any, wire: str, snake: str) -> Any:
    """A field that the wire names in camel case and the SDK in snake case."""
    value = field(holder, wire)
    return field(holder, snake) if value is None else value


def entries(value: Any) -> Any:
    """The value if it is a list or tuple, else nothing."""
    return value if isinstance(value, (list, tuple)) else ()


def flags_of(memory: Memory, chunk: Any) -> int:
    """Flags of a parsed chunk of any shape; what nothing here knows counts as progress."""
    kind = field(chunk, "type")
    if type(kind) is str:
        flags = typed_flags(memory, chunk, kind)
        if flags is not None:
            return flags
    if has_any(chunk, "choices"):
        return chat_flags(memory, chunk)
    if is_google(chunk):
        return google_flags(memory, chunk)
    if has_any(chunk, "error") and field(chunk, "error"):
        return TERMINAL | ERROR
    return PROGRESS if type(chunk) is not dict or chunk else 0


def has_any(chunk: Any, *names: str) -> bool:
    """Whether the chunk really has one of the fields (an object that invents any, like a mock,
    has none)."""
    if isinstance(chunk, dict):
        return any(name in chunk for name in names)
    own = getattr(chunk, "__dict__", None)
    return any((own is not None and name in own) or hasattr(type(chunk), name) for name in names)


def is_google(chunk: Any) -> bool:
    return has_any(
        chunk, "candidates", "usageMetadata", "usage_metadata", "promptFeedback", "prompt_feedback"
    )


def typed_flags(memory: Memory, chunk: Any, kind: str) -> int | None:
    """Flags of an event that names its kind, None if the kind is unknown."""
    rule = KINDS.get(kind)
    if rule is not None:
        memory.known = True
        return 0 if rule.twin and memory.raw else _apply(rule, chunk)
    nest = NESTED.get(kind)
    if nest is not None:
        memory.known = True
        if kind == "content_block_delta":
            memory.raw = True
        name, rules, default = nest
        inner = field(chunk, name)
        return _apply(nested_rule(rules, field(inner, "type"), default), inner)
    wrapped = WRAPPERS.get(kind)
    if wrapped is not None and has_any(chunk, wrapped):
        if kind == "chunk":
            memory.raw = True
        return flags_of(memory, field(chunk, wrapped))
    return None


def _apply(rule: Rule, holder: Any) -> int:
    if not rule.fields:
        return rule.flags
    return rule.flags if any(field(holder, name) for name in rule.fields) else 0


def chat_flags(memory: Memory, chunk: Any) -> int:
    """Flags of a chat completions chunk. The finish reason of the last open choice is terminal,
    since an SDK never shows `[DONE]`; a chunk with the usage may follow it."""
    flags = TERMINAL | ERROR if field(chunk, "error") else 0
    choices = field(chunk, "choices")
    if choices is not None and not isinstance(choices, (list, tuple)):
        return flags or PROGRESS
    finished = False
    for choice in choices or ():
        if _chat_counts(choice):
            flags |= PROGRESS
        reason = field(choice, "finish_reason")
        if reason == "error":
            flags |= ERROR
        finished = memory.note(field(choice, "index"), ended=bool(reason)) or finished
    if finished and memory.complete():
        flags |= TERMINAL
    return flags


def _chat_counts(choice: Any) -> bool:
    delta = field(choice, "delta")
    if delta is None:
        return bool(field(choice, "text"))  # the older completions API
    if any(field(delta, name) for name in CHAT_DELTA):
        return True
    return any(fragment for _, _, fragment in _chat_tools(choice, delta))


def _chat_tools(choice: Any, delta: Any) -> Iterator[ToolFragment]:
    prefix = field(choice, "index")
    for position, call in enumerate(entries(field(delta, "tool_calls"))):
        index = field(call, "index")
        key = str(position if index is None else index)
        if prefix:  # not the first choice
            key = f"{prefix}.{key}"
        function = field(call, "function")
        custom = field(call, "custom")
        arguments = field(custom, "input") if function is None else field(function, "arguments")
        name = field(custom, "name") if function is None else field(function, "name")
        yield key, _name(name), _as_json(arguments)
    legacy = field(delta, "function_call")
    if legacy is not None:
        yield "function_call", _name(field(legacy, "name")), _as_json(field(legacy, "arguments"))


def google_flags(memory: Memory, chunk: Any) -> int:
    """Flags of a generateContent chunk. A blocked prompt has no candidates and ends the answer."""
    if has_any(chunk, "error") and field(chunk, "error"):
        return TERMINAL | ERROR
    candidates = field(chunk, "candidates")
    if not candidates:
        feedback = either(chunk, "promptFeedback", "prompt_feedback")
        return TERMINAL if _given(either(feedback, "blockReason", "block_reason")) else 0
    flags = 0
    finished = False
    for candidate in entries(candidates):
        parts = field(field(candidate, "content"), "parts")
        if any(_part(part, name) for part in entries(parts) for name in GOOGLE_PART):
            flags |= PROGRESS
        ended = _given(either(candidate, "finishReason", "finish_reason"))
        finished = memory.note(field(candidate, "index"), ended=ended) or finished
    if finished and memory.complete():
        flags |= TERMINAL
    return flags


def _part(part: Any, name: str) -> Any:
    value = field(part, name)
    return field(part, _SNAKE[name]) if value is None else value


_SNAKE = {
    name: "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)
    for name in GOOGLE_PART
}


def _given(reason: Any) -> bool:
    """Whether an enum field, as text, number or member, says more than "unspecified"."""
    if not reason:
        return False
    name = getattr(reason, "name", reason)
    return not (isinstance(name, str) and name.upper().endswith("UNSPECIFIED"))


def collect(memory: Memory, chunk: Any, into: Pieces) -> None:
    """Add what a parsed chunk carries. With several choices only the first one is the answer:
    the others would be woven into it word by word."""
    kind = field(chunk, "type")
    if type(kind) is str and _collect_typed(memory, chunk, kind, into):
        return
    if has_any(chunk, "choices"):
        for choice in entries(field(chunk, "choices")):
            _collect_choice(choice, into)
    elif is_google(chunk):
        for candidate in entries(field(chunk, "candidates")):
            _collect_candidate(candidate, into)


def _collect_typed(memory: Memory, chunk: Any, kind: str, into: Pieces) -> bool:
    rule = KINDS.get(kind)
    if rule is not None:
        if not (rule.twin and memory.raw):
            _carry(rule, chunk, chunk, into)
        return True
    nest = NESTED.get(kind)
    if nest is not None:
        if kind == "content_block_delta":
            memory.raw = True
        name, rules, default = nest
        inner = field(chunk, name)
        _carry(nested_rule(rules, field(inner, "type"), default), inner, chunk, into)
        return True
    wrapped = WRAPPERS.get(kind)
    if wrapped is not None and has_any(chunk, wrapped):
        if kind == "chunk":
            memory.raw = True
        collect(memory, field(chunk, wrapped), into)
        return True
    return False


def _carry(rule: Rule, holder: Any, event: Any, into: Pieces) -> None:
    if rule.carries is NOTHING:
        return
    value = field(holder, rule.fields[0])
    if rule.carries is TOOL_START:
        into.tool_args.append((_key(event), _name(field(holder, "name")), _as_json(value)))
    elif rule.carries is TOOL_ARGS:
        if value:
            into.tool_args.append((_key(event), _name(field(event, "name")), _as_json(value)))
    elif type(value) is str and value:
        (into.text if rule.carries is TEXT else into.reasoning).append(value)


def _key(event: Any) -> str:
    for name in ("output_index", "index", "item_id"):
        value = field(event, name)
        if isinstance(value, (int, str)):
            return str(value)
    return "0"


def _collect_choice(choice: Any, into: Pieces) -> None:
    delta = field(choice, "delta")
    if delta is None:
        if not field(choice, "index"):
            _add(field(choice, "text"), into.text)
        return
    into.tool_args.extend(_chat_tools(choice, delta))
    if field(choice, "index"):
        return
    _add_content(field(delta, "content"), into)
    _add(field(delta, "refusal"), into.text)
    _add(field(field(delta, "audio"), "transcript"), into.text)
    # Some gateways send the same words under both names.
    _add(field(delta, "reasoning_content") or field(delta, "reasoning"), into.reasoning)


def _add(value: Any, to: list[str]) -> None:
    if isinstance(value, str) and value:
        to.append(value)


def _add_content(content: Any, into: Pieces) -> None:
    """Content is text, or with mistral a list of text and thinking parts."""
    _add(content, into.text)
    for part in entries(content):
        _add(field(part, "text"), into.text)
        for thought in entries(field(part, "thinking")):
            _add(field(thought, "text"), into.reasoning)


def _collect_candidate(candidate: Any, into: Pieces) -> None:
    position = field(candidate, "index") or 0
    for part in entries(field(field(candidate, "content"), "parts")):
        if not position:
            kind = into.reasoning if field(part, "thought") is True else into.text
            _add(field(part, "text"), kind)
        call = _part(part, "functionCall")
        if call is not None:
            # Calls come whole, without an index: the id tells two of the same name apart.
            key = field(call, "id") or field(call, "name") or position
            arguments = field(call, "args") or either(call, "partialArgs", "partial_args")
            into.tool_args.append((str(key), _name(field(call, "name")), _as_json(arguments)))


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _as_json(value: Any) -> str:
    """Arguments as text: a fragment as it came, a parsed object rendered."""
    if isinstance(value, str):
        return value
    if not value:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)
