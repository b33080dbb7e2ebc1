"""What one chunk of each provider counts as, as a dict and as an object."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

from stallwatch import _chunks
from stallwatch._chunks import ERROR, KEEPALIVE, PROGRESS, TERMINAL, Classifier
from stallwatch._chunks_kinds import KINDS, NESTED
from stallwatch._chunks_read import Memory, flags_of


def chat(delta: object = None, finish: object = None, index: int = 0, **more: object) -> dict:
    """A chat completions chunk with one choice."""
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}


def block(delta: dict) -> dict:
    """An Anthropic delta event."""
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def start(content_block: dict) -> dict:
    """An Anthropic block start."""
    return {"type": "content_block_start", "index": 0, "content_block": content_block}


def google(*parts: dict, **more: object) -> dict:
    """A generateContent chunk with one candidate."""
    return {"candidates": [{"content": {"parts": list(parts), "role": "model"}, **more}]}


def response(kind: str, **more: object) -> dict:
    """An event of the responses API."""
    return {"type": f"response.{kind}", "output_index": 0, "item_id": "i", **more}


def call(arguments: object, name: str | None = None) -> dict:
    """A chat delta with one tool call."""
    return {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]}


def thaw(value: Any) -> Any:
    """The same data as objects with attributes instead of dicts; as in the SDKs, the arguments
    of tools stay data."""
    if isinstance(value, dict):
        free = ("input", "args", "arguments")
        items = {key: item if key in free else thaw(item) for key, item in value.items()}
        return SimpleNamespace(**items)
    if isinstance(value, list):
        return [thaw(item) for item in value]
    return value


# chunk, flags, text, reasoning, pieces of tool arguments
CASES: dict[str, tuple[dict, int, str, str, str]] = {
    "chat text": (chat({"content": "Hi"}), PROGRESS, "Hi", "", ""),
    "chat space": (chat({"content": " "}), PROGRESS, " ", "", ""),
    "chat role": (chat({"role": "assistant", "content": ""}), 0, "", "", ""),
    "chat null": (chat({"content": None}), 0, "", "", ""),
    "chat refusal": (chat({"refusal": "No"}), PROGRESS, "No", "", ""),
    "chat deepseek": (
        chat({"content": None, "reasoning_content": "Hm"}),
        PROGRESS,
        "",
        "Hm",
        "",
    ),
    "chat reasoning": (chat({"content": "", "reasoning": "Hm"}), PROGRESS, "", "Hm", ""),
    "chat both reasonings": (
        chat({"reasoning": "Hm", "reasoning_content": "Hm"}),
        PROGRESS,
        "",
        "Hm",
        "",
    ),
    "chat tool name": (chat(call("", "get")), 0, "", "", ""),
    "chat tool args": (chat(call('{"a')), PROGRESS, "", "", '{"a'),
    "chat tool whole": (chat(call({"a": 1}, "get")), PROGRESS, "", "", '{"a": 1}'),
    "chat custom tool": (
        chat({"tool_calls": [{"index": 0, "custom": {"name": "sh", "input": "ls"}}]}),
        PROGRESS,
        "",
        "",
        "ls",
    ),
    "chat legacy function": (
        chat({"function_call": {"name": "get", "arguments": "{"}}),
        PROGRESS,
        "",
        "",
        "{",
    ),
    "chat audio": (chat({"audio": {"transcript": "Hi"}}), PROGRESS, "Hi", "", ""),
    "chat mistral parts": (
        chat(
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
                    {"type": "text", "text": "Hi"},
                ]
            }
        ),
        PROGRESS,
        "Hi",
        "Hm",
        "",
    ),
    "chat usage": ({"choices": [], "usage": {"total_tokens": 3}}, 0, "", "", ""),
    "chat choices null": ({"choices": None, "usage": {"total_tokens": 3}}, 0, "", "", ""),
    "chat finish": (chat({}, "stop"), TERMINAL, "", "", ""),
    "chat finish with text": (chat({"content": "."}, "stop"), PROGRESS | TERMINAL, ".", "", ""),
    "chat finish error": (chat({"content": ""}, "error"), TERMINAL | ERROR, "", "", ""),
    "chat error": ({"error": {"message": "overloaded"}}, TERMINAL | ERROR, "", "", ""),
    "chat error and choices": (
        chat({"content": ""}, error={"code": 502}),
        TERMINAL | ERROR,
        "",
        "",
        "",
    ),
    "chat second choice": (chat({"content": "B"}, index=1), PROGRESS, "", "", ""),
    "completions text": (
        {"choices": [{"index": 0, "text": "Hi", "finish_reason": None}]},
        PROGRESS,
        "Hi",
        "",
        "",
    ),
    "anthropic ping": ({"type": "ping"}, KEEPALIVE, "", "", ""),
    "anthropic start": ({"type": "message_start", "message": {"content": []}}, 0, "", "", ""),
    "anthropic text": (block({"type": "text_delta", "text": "Hi"}), PROGRESS, "Hi", "", ""),
    "anthropic empty text": (block({"type": "text_delta", "text": ""}), 0, "", "", ""),
    "anthropic thinking": (
        block({"type": "thinking_delta", "thinking": "Hm"}),
        PROGRESS,
        "",
        "Hm",
        "",
    ),
    "anthropic withheld thinking": (
        block({"type": "thinking_delta", "thinking": "", "estimated_tokens": 50}),
        PROGRESS,
        "",
        "",
        "",
    ),
    "anthropic no thinking": (
        block({"type": "thinking_delta", "thinking": "", "estimated_tokens": None}),
        0,
        "",
        "",
        "",
    ),
    "anthropic signature": (
        block({"type": "signature_delta", "signature": "Eq"}),
        PROGRESS,
        "",
        "",
        "",
    ),
    "anthropic json": (
        block({"type": "input_json_delta", "partial_json": '{"a'}),
        PROGRESS,
        "",
        "",
        '{"a',
    ),
    "anthropic empty json": (
        block({"type": "input_json_delta", "partial_json": ""}),
        0,
        "",
        "",
        "",
    ),
    "anthropic unknown delta": (block({"type": "dance_delta", "step": 1}), PROGRESS, "", "", ""),
    "anthropic text block": (start({"type": "text", "text": ""}), 0, "", "", ""),
    "anthropic filled text block": (start({"type": "text", "text": "Hi"}), PROGRESS, "Hi", "", ""),
    "anthropic tool block": (
        start({"type": "tool_use", "id": "t", "name": "get", "input": {}}),
        0,
        "",
        "",
        "",
    ),
    "anthropic whole tool block": (
        start({"type": "tool_use", "id": "t", "name": "get", "input": {"a": 1}}),
        PROGRESS,
        "",
        "",
        '{"a": 1}',
    ),
    "anthropic search result": (
        start({"type": "web_search_tool_result", "tool_use_id": "t", "content": []}),
        PROGRESS,
        "",
        "",
        "",
    ),
    "anthropic new tool result": (
        start({"type": "moon_probe_tool_result", "content": []}),
        PROGRESS,
        "",
        "",
        "",
    ),
    "anthropic new block": (start({"type": "moon_probe"}), 0, "", "", ""),
    "anthropic redacted": (start({"type": "redacted_thinking", "data": "x"}), PROGRESS, "", "", ""),
    "anthropic block stop": ({"type": "content_block_stop", "index": 0}, 0, "", "", ""),
    "anthropic message delta": (
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        0,
        "",
        "",
        "",
    ),
    "anthropic stop": ({"type": "message_stop"}, TERMINAL, "", "", ""),
    "anthropic error": (
        {"type": "error", "error": {"type": "overloaded_error"}},
        TERMINAL | ERROR,
        "",
        "",
        "",
    ),
    "responses text": (response("output_text.delta", delta="Hi"), PROGRESS, "Hi", "", ""),
    "responses text with snapshot": (
        response("output_text.delta", delta="Hi", snapshot="Hi Hi Hi"),
        PROGRESS,
        "Hi",
        "",
        "",
    ),
    "responses empty text": (response("output_text.delta", delta=""), 0, "", "", ""),
    "responses text done": (response("output_text.done", text="Hi"), 0, "", "", ""),
    "responses refusal": (response("refusal.delta", delta="No"), PROGRESS, "No", "", ""),
    "responses summary": (
        response("reasoning_summary_text.delta", delta="Hm"),
        PROGRESS,
        "",
        "Hm",
        "",
    ),
    "responses arguments": (
        response("function_call_arguments.delta", delta="{"),
        PROGRESS,
        "",
        "",
        "{",
    ),
    "responses call added": (
        response("output_item.added", item={"type": "function_call", "name": "get"}),
        0,
        "",
        "",
        "",
    ),
    "responses search": (response("web_search_call.searching"), 0, "", "", ""),
    "responses search result": (response("web_search_call.completed"), PROGRESS, "", "", ""),
    "responses reasoning done": (
        response("output_item.done", item={"type": "reasoning", "summary": []}),
        PROGRESS,
        "",
        "",
        "",
    ),
    "responses message done": (
        response("output_item.done", item={"type": "message", "content": []}),
        0,
        "",
        "",
        "",
    ),
    "responses created": (response("created", response={"error": None}), 0, "", "", ""),
    "responses completed": (response("completed", response={}), TERMINAL, "", "", ""),
    "responses incomplete": (response("incomplete", response={}), TERMINAL, "", "", ""),
    "responses failed": (response("failed", response={}), TERMINAL | ERROR, "", "", ""),
    "responses unknown": (response("dance.delta", delta="x"), PROGRESS, "", "", ""),
    "google text": (google({"text": "Hi"}), PROGRESS, "Hi", "", ""),
    "google thought": (google({"text": "Hm", "thought": True}), PROGRESS, "", "Hm", ""),
    "google call": (
        google({"functionCall": {"name": "get", "args": {"a": 1}}}),
        PROGRESS,
        "",
        "",
        '{"a": 1}',
    ),
    "google call snake": (
        google({"function_call": {"name": "get", "args": {"a": 1}}}),
        PROGRESS,
        "",
        "",
        '{"a": 1}',
    ),
    "google result": (google({"codeExecutionResult": {"outcome": "OK"}}), PROGRESS, "", "", ""),
    "google empty": (google({"text": ""}), 0, "", "", ""),
    "google usage": ({"usageMetadata": {"totalTokenCount": 3}}, 0, "", "", ""),
    "google finish": (google({"text": ""}, finishReason="STOP"), TERMINAL, "", "", ""),
    "google unspecified": (
        google({"text": ""}, finishReason="FINISH_REASON_UNSPECIFIED"),
        0,
        "",
        "",
        "",
    ),
    "google blocked": ({"promptFeedback": {"blockReason": "SAFETY"}}, TERMINAL, "", "", ""),
    "google error": ({"error": {"code": 503}}, TERMINAL | ERROR, "", "", ""),
    "helper text": ({"type": "text", "text": "Hi", "snapshot": "Hi Hi"}, PROGRESS, "Hi", "", ""),
    "unknown dict": ({"token": "x"}, PROGRESS, "", "", ""),
}


@pytest.mark.parametrize("form", ["dict", "object"])
@pytest.mark.parametrize("case", CASES)
def test_known_chunk(case: str, form: str) -> None:
    """A chunk gets the flags and pieces of its kind, be it a dict or an object."""
    chunk, flags, text, reasoning, args = CASES[case]
    if form == "object":
        chunk = thaw(chunk)
    reader = Classifier()

    assert reader.classify(chunk) == flags
    assert reader.text_of(chunk) == text
    assert reader.reasoning_of(chunk) == reasoning
    assert "".join(piece for _, _, piece in reader.tool_args_of(chunk)) == args


def test_empty_dict_says_nothing() -> None:
    """An empty dict is an empty chunk, not an unknown one."""
    assert Classifier().classify({}) == 0


@pytest.mark.parametrize("case", CASES)
def test_shortcut_agrees_with_thorough_reading(case: str) -> None:
    """The shortcut for common chunks gives what the tables give, also once the choice is known."""
    chunk, *_ = CASES[case]
    reader, memory = Classifier(), Memory()
    before = chat({"role": "assistant"})
    reader.classify(before)
    flags_of(memory, before)

    assert reader.classify(chunk) == flags_of(memory, chunk)


def test_sdk_kinds_are_all_known() -> None:
    """No event kind of the installed SDKs is left to the rule for unknown kinds."""
    kinds: set[str] = set()

    def gather(union: Any) -> None:
        for member in getattr(union, "__args__", ()):
            if hasattr(member, "model_fields"):
                kinds.update(member.model_fields["type"].annotation.__args__)
            else:
                gather(member)

    gather(ResponseStreamEvent)
    gather(RawMessageStreamEvent)

    assert len(kinds) > 50
    assert kinds <= KINDS.keys() | NESTED.keys()


def test_usage_chunk_follows_the_end_of_a_chat() -> None:
    """The finish reason is the one end; the usage chunk after it says nothing."""
    chunks = [chat({"content": "Hi"}), chat({}, "stop"), {"choices": [], "usage": {}}]
    reader = Classifier()

    assert [reader.classify(chunk) for chunk in chunks] == [PROGRESS, TERMINAL, 0]


@pytest.mark.parametrize("form", ["dict", "object", "sdk"])
def test_chat_with_several_choices_ends_with_the_last(form: str) -> None:
    """With n > 1 the end is the finish reason of the last choice that was open."""
    chunks: list[Any] = [
        chat({"content": "a"}, index=0),
        chat({"content": "b"}, index=1),
        chat({}, "stop", index=0),
        chat({"content": "b"}, index=1),
        chat({}, "stop", index=1),
    ]
    if form == "object":
        chunks = [thaw(chunk) for chunk in chunks]
    elif form == "sdk":
        chunks = [ChatCompletionChunk.construct(**chunk) for chunk in chunks]
    reader = Classifier()

    flags = [reader.classify(chunk) for chunk in chunks]

    assert flags == [PROGRESS, PROGRESS, 0, PROGRESS, TERMINAL]
    assert reader.fold(chunks).text == "a"


def test_one_chunk_that_ends_one_choice_and_opens_another_is_not_the_end() -> None:
    """The order of the choices inside a chunk does not matter."""
    chunk = chat({}, "stop")
    chunk["choices"].append({"index": 1, "delta": {"content": "b"}, "finish_reason": None})

    assert Classifier().classify(chunk) == PROGRESS


def test_tool_arguments_carry_key_and_name() -> None:
    """Pieces of one call share a key; the name comes with the announcement."""
    chunks = [
        start({"type": "tool_use", "id": "t", "name": "get", "input": {}}),
        block({"type": "input_json_delta", "partial_json": '{"a'}),
        block({"type": "input_json_delta", "partial_json": '":1}'}),
        response("output_item.added", output_index=1, item={"type": "function_call", "name": "f"}),
        response("function_call_arguments.delta", output_index=1, delta="{}"),
        chat({"tool_calls": [{"index": 2, "function": {"name": "g", "arguments": ""}}]}),
        chat({"tool_calls": [{"index": 2, "function": {"arguments": "[]"}}]}),
    ]

    assert Classifier().fold(chunks).tool_args == (
        ("0", "get", ""),
        ("0", None, '{"a'),
        ("0", None, '":1}'),
        ("1", "f", ""),
        ("1", None, "{}"),
        ("2", "g", ""),
        ("2", None, "[]"),
    )


@pytest.mark.parametrize(
    ("raw", "twin"),
    [
        (
            block({"type": "text_delta", "text": "Hi"}),
            {"type": "text", "text": "Hi", "snapshot": "Hi"},
        ),
        (
            {"type": "chunk", "chunk": chat({"content": "Hi"}), "snapshot": {}},
            {"type": "content.delta", "delta": "Hi", "snapshot": "Hi"},
        ),
    ],
)
def test_twins_of_a_helper_stream_count_once(raw: dict, twin: dict) -> None:
    """Beside the raw event the made-up one is nothing; without it, it counts itself."""
    both, filtered = Classifier(), Classifier()

    assert [both.classify(raw), both.classify(twin)] == [PROGRESS, 0]
    assert both.fold([raw, twin, raw, twin]).text == "HiHi"
    assert filtered.classify(twin) == PROGRESS
    assert filtered.fold([twin, twin]).text == "HiHi"


class FinishReason(enum.Enum):
    """Like the enum of the Google SDK."""

    FINISH_REASON_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
    STOP = "STOP"


@dataclass
class GenerateContentResponse:
    """Like the response class of the Google SDK: declared fields, snake case."""

    candidates: list[Any] | None = None
    prompt_feedback: Any = None
    usage_metadata: Any = None


@pytest.mark.parametrize("reason", FinishReason)
def test_google_object_ends_by_enum(reason: FinishReason) -> None:
    """A finish reason of the SDK is an enum member; "unspecified" is none."""
    part = SimpleNamespace(text="Hi", thought=None, function_call=None)
    candidate = SimpleNamespace(content=SimpleNamespace(parts=[part]), finish_reason=reason)
    chunk = GenerateContentResponse([candidate])

    ended = TERMINAL if reason is FinishReason.STOP else 0
    assert Classifier().classify(chunk) == PROGRESS | ended
    assert Classifier().text_of(chunk) == "Hi"


@dataclass
class StreamEvent:
    """Like the partial message of claude-agent-sdk."""

    uuid: str
    event: dict


def test_wrapping_object_is_read_through() -> None:
    """A class that only wraps a raw event counts as that event."""
    ping = StreamEvent("u", {"type": "ping"})
    text = StreamEvent("u", block({"type": "text_delta", "text": "Hi"}))
    reader = Classifier()

    assert [reader.classify(ping), reader.classify(text)] == [KEEPALIVE, PROGRESS]
    assert reader.fold([ping, text]).text == "Hi"


def test_fields_of_one_class_may_differ_by_instance() -> None:
    """The decision kept for a class is not about the first chunk of a class without fields."""
    reader = Classifier()

    assert reader.classify(thaw({"type": "ping"})) == KEEPALIVE
    assert reader.classify(thaw(chat({"content": "Hi"}))) == PROGRESS
    assert reader.classify(thaw({"token": "x"})) == PROGRESS


class Hostile:
    """Raises whatever is asked of it."""

    @property
    def type(self) -> str:
        raise RuntimeError("no")

    @property
    def choices(self) -> list[object]:
        raise RuntimeError("no")


class HostileDict(dict):
    """A dict that cannot be read."""

    def get(self, *_: object) -> object:
        raise RuntimeError("no")


def weird() -> Iterator[object]:
    """Chunks that no provider sends."""
    yield from (None, 1, 2.5, object(), (), [], [{}], ("messages", {}), MagicMock(), Hostile())
    yield from (HostileDict(a=1), type, Ellipsis, lambda: 0, FinishReason.STOP)
    yield {"choices": 3}
    yield SimpleNamespace(choices=MagicMock())


@pytest.mark.parametrize("chunk", [*weird()], ids=lambda chunk: type(chunk).__name__)
def test_unknown_chunk_is_progress_without_text(chunk: object) -> None:
    """What nobody knows counts, carries nothing, and never raises."""
    reader = Classifier()

    assert reader.classify(chunk) == PROGRESS
    assert reader.text_of(chunk) == ""
    assert reader.tool_args_of(chunk) == []


def test_known_types_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes made at run time do not pile up."""
    monkeypatch.setattr(_chunks, "_KNOWN_TYPES_MAX", 8)
    reader = Classifier()

    for number in range(40):
        reader.classify(type(f"Made{number}", (), {})())

    assert len(_chunks._HANDLERS) <= 8


KEYS = st.sampled_from(
    [
        "type",
        "choices",
        "delta",
        "content",
        "index",
        "finish_reason",
        "tool_calls",
        "function",
        "arguments",
        "candidates",
        "parts",
        "text",
        "error",
        "content_block",
        "item",
        "reasoning_content",
        "audio",
        "chunk",
        "data",
        "thought",
        "functionCall",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from([*KINDS])
JSON = st.recursive(
    LEAVES | st.sampled_from([*NESTED]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=4))
def test_no_shape_of_data_raises(chunks: list[Any]) -> None:
    """Any data, as dicts or as objects, is classified and folded."""
    for form in (chunks, [thaw(chunk) for chunk in chunks]):
        reader = Classifier()
        for chunk in form:
            assert 0 <= reader.classify(chunk) <= 15
            assert isinstance(reader.text_of(chunk), str)
        assert isinstance(reader.fold(form, final=True).text, str)


@given(st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=4))
def test_shortcuts_agree_on_any_dict(chunks: list[dict]) -> None:
    """Shortcut and thorough reading give the same flags for the same history."""
    reader, memory = Classifier(), Memory()

    for chunk in chunks:
        try:
            expected = flags_of(memory, chunk)
        except Exception:
            expected = PROGRESS
        assert reader.classify(chunk) == expected
