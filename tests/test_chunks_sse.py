"""Streams of text and bytes: plain text, or server-sent events in any framing."""

import json
from itertools import pairwise

import pytest
from anthropic._streaming import ServerSentEvent
from hypothesis import given
from hypothesis import strategies as st

from stallwatch._chunks import ERROR, KEEPALIVE, PROGRESS, TERMINAL, Classifier

EVENTS = [
    {"type": "message_start", "message": {"content": []}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grüße: "}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "a\u2028b"},
    },
    {"type": "message_stop"},
]
TEXT = "Grüße: a\u2028b"


def wire(newline: str = "\n") -> str:
    """The events as an Anthropic-like server writes them, with a comment in between."""
    out = [": hello", ""]
    for event in EVENTS:
        out += [f"event: {event['type']}", f"data: {json.dumps(event, ensure_ascii=False)}", ""]
    return newline.join([*out, ""])


def read(chunks: list, *, final: bool = True) -> tuple[list[int], str]:
    """Flags of each chunk and the text of all."""
    reader = Classifier()
    flags = [reader.classify(chunk) for chunk in chunks]
    return flags, reader.fold(chunks, final=final).text


def test_plain_text_is_its_own_text() -> None:
    """Each `str` chunk counts if it is not empty, and says so for the fast path."""
    reader = Classifier()

    assert not reader.plain_text
    assert [reader.classify(chunk) for chunk in ("Hi", "", ": ", "data: x", "\n")] == [
        1,
        0,
        1,
        1,
        1,
    ]
    assert reader.plain_text
    assert reader.fold(["Hi", "", ": ", "data: x", "\n"]).text == "Hi: data: x\n"
    assert reader.text_of(": ") == ": "


def test_colon_before_the_decision_is_not_lost() -> None:
    """A leading ":" is taken for a comment until the stream turns out to be plain text."""
    reader = Classifier()

    assert reader.classify(": ") == KEEPALIVE
    assert not reader.plain_text
    assert reader.classify("Hi") == PROGRESS
    assert reader.plain_text
    assert reader.text_of(": ") + reader.text_of("Hi") == ": Hi"
    assert reader.fold([": "]).text + reader.fold(["Hi"]).text == ": Hi"


def test_fold_before_the_decision_gives_the_colon_later() -> None:
    """A batch that ends before the decision keeps its text for the next one."""
    reader = Classifier()

    assert reader.fold([": "]).text == ""
    assert reader.fold(["Hi"]).text == ": Hi"


def test_line_break_opens_a_plain_text() -> None:
    """Models like to start with a line break: that is text, unless comments came before."""
    assert read(["\n\n", "Hi"]) == ([PROGRESS, PROGRESS], "\n\nHi")
    assert read([":\n", "\n", "data: x\n", "\n"]) == (
        [KEEPALIVE, KEEPALIVE, PROGRESS, KEEPALIVE],
        "x",
    )


def test_lines_without_newlines() -> None:
    """What `aiter_lines` gives: comments and blank lines keep alive, event names say nothing."""
    chunks = wire().split("\n")
    flags, text = read(chunks)

    by_line = dict(zip(chunks, flags, strict=True))
    assert text == TEXT
    assert by_line[": hello"] == by_line["event: ping"] == KEEPALIVE
    assert by_line['data: {"type": "ping"}'] == KEEPALIVE
    assert by_line["event: message_start"] == by_line["event: message_stop"] == 0
    assert [flag for flag in flags if flag & PROGRESS] == [PROGRESS, PROGRESS]
    assert [flag for flag in flags if flag & TERMINAL] == [TERMINAL]


def test_comment_heartbeats_after_one_event_never_count() -> None:
    """The stuck generation of the field: one event, then only comments and blank lines."""
    for kind in (str, str.encode):
        chunks = [kind("data: hello"), kind(""), *[kind(": ping"), kind("")] * 5]
        flags, text = read(chunks)

        assert flags == [PROGRESS, *[KEEPALIVE] * 11]
        assert text == "hello"


def test_whole_events_count_like_their_data() -> None:
    """A chunk that is one event has the flags of that event, without those of its blank line."""
    chunks = wire().removeprefix(": hello\n\n").split("\n\n")[:-1]

    flags, text = read([chunk + "\n\n" for chunk in chunks])

    assert flags == [0, KEEPALIVE, PROGRESS, PROGRESS, TERMINAL]
    assert text == TEXT


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_bytes_cut_anywhere(newline: str, size: int) -> None:
    """Cuts inside lines, line ends and characters change neither text nor end."""
    data = wire(newline).encode()
    flags, text = read([data[at : at + size] for at in range(0, len(data), size)])

    assert text == TEXT
    assert sum(bool(flag & TERMINAL) for flag in flags) == 1
    assert 1 <= sum(bool(flag & PROGRESS) for flag in flags) <= 2


@given(cuts=st.lists(st.integers(0, len(wire().encode())), max_size=12), batch=st.integers(1, 5))
def test_any_cut_and_any_batch_give_the_same_text(cuts: list[int], batch: int) -> None:
    """Folding batch by batch equals folding at once, wherever the bytes are cut."""
    data = wire().encode()
    points = sorted({0, len(data), *cuts})
    chunks = [data[start:end] for start, end in pairwise(points)]
    reader = Classifier()

    flags = [reader.classify(chunk) for chunk in chunks]
    text = "".join(reader.fold(chunks[at : at + batch]).text for at in range(0, len(chunks), batch))

    assert text == TEXT
    assert sum(bool(flag & TERMINAL) for flag in flags) == 1


def test_cut_of_the_first_line_in_bytes() -> None:
    """A first chunk without a newline may be a line or the start of one."""
    assert read([b"da", b"ta: hel", b"lo\n\n"])[1] == "hello"
    assert read([b"data: hel", b"lo\n\n", b"data: x\n\n"])[1] == "hellox"
    assert read([b"data:", b" hello\n\n", b"data: x\n\n"])[1] == "hellox"
    assert read([b": pi", b"ng\n\ndata: x\n\n"]) == ([KEEPALIVE, PROGRESS], "x")
    assert read([b'data: {"type"', b':"message_stop"}', b"\n\n"])[0] == [0, 0, TERMINAL]
    assert read([b"event: pi", b"ng\n", b"data: x\n\n"])[0] == [0, KEEPALIVE, KEEPALIVE]


def test_half_a_line_of_text_counts_and_half_a_json_does_not() -> None:
    """Text that grows is progress; an event is one when it is whole."""
    flags, text = read(["data: a\n", "\ndata: b", "c", "\n\n", 'data: {"type"', ':"ping"}\n\n'])

    assert flags == [PROGRESS, KEEPALIVE, PROGRESS, PROGRESS, 0, KEEPALIVE]
    assert text == "abc"


def test_final_gives_what_was_held_back() -> None:
    """At the end an unfinished line of text is text; half an event is nothing."""
    assert read(["data: a\n\ndata: b"], final=False)[1] == "a"
    assert read(["data: a\n\ndata: b"])[1] == "ab"
    assert read(['data: a\n\ndata: {"choices"'])[1] == "a"
    assert read([b"da"])[1] == "da"
    assert read([b"caf\xc3"])[1] == "caf\ufffd"


def test_done_and_errors() -> None:
    """`[DONE]`, an event named error and a bare error object end the stream."""
    assert read(["data: a\n\n", "data: [DONE]\n\n"])[0] == [PROGRESS, TERMINAL]
    assert read(["event: error\ndata: overloaded\n\n"]) == ([TERMINAL | ERROR], "")
    assert read(["data: a", "", '{"error": {"code": 1}}'])[0][-1] == TERMINAL | ERROR


def test_event_name_stands_in_for_a_missing_type() -> None:
    """Servers that leave the type out of the data name the event."""
    event = 'event: response.output_text.delta\ndata: {"delta": "Hi"}\n\n'

    assert read([event]) == ([PROGRESS], "Hi")


def test_data_over_several_lines() -> None:
    """Data lines of one event are one text, or one JSON."""
    assert read(["data: a\ndata: b\n\ndata: c\n\n"])[1] == "a\nbc"
    assert read(['data: {"type":\n', 'data: "message_stop"}\n', "\n"])[0] == [0, 0, TERMINAL]
    assert read(['data: {"type":', 'data: "message_stop"}', ""])[0] == [0, 0, TERMINAL]
    assert read(["data: {oops}", ""])[1] == "{oops}"
    assert read(["data:", "", "data: x", ""])[0] == [KEEPALIVE, KEEPALIVE, PROGRESS, KEEPALIVE]


def test_id_and_retry_say_nothing_and_unknown_lines_count() -> None:
    """The other fields are metadata; what is no field at all is at least something."""
    assert read(["id: 7", "retry: 10", "data: x", "", "what?"])[0][:2] == [0, 0]
    assert read(["data: x", "", "what?"])[0][-1] == PROGRESS


def test_odd_line_does_not_swallow_the_lines_after_it() -> None:
    """Without any newline in sight the reader finds back to one line a chunk."""
    chunks = ["event: message", "what?", "data: x", "", "data: y"]

    assert read(chunks)[1] == "xy"


def test_byte_order_mark_is_no_text() -> None:
    """A mark before the first field does not hide it."""
    assert read(["\ufeffdata: x\n\n"]) == ([PROGRESS], "x")
    assert read(["\ufeffdata: x\n\n".encode()]) == ([PROGRESS], "x")
    assert read(["\ufeffx"]) == ([PROGRESS], "\ufeffx")


def test_bytes_that_are_no_events() -> None:
    """Other bytes count and are read as lossy UTF-8, cut characters included."""
    chunks = [b"Gr\xc3", b"\xbc\xc3", b"\x9fe", b"", b"\xff"]

    assert read(chunks) == ([1, 1, 1, 0, 1], "Grüße\ufffd")
    assert not Classifier().plain_text
    assert read([bytearray(b"Hi"), memoryview(b" you")])[1] == "Hi you"


def test_bytes_that_start_with_a_colon_become_text() -> None:
    """A colon alone does not hold a byte stream for ever."""
    flags, _ = read([b": ", *[b"word " for _ in range(100)]])

    assert flags[0] == KEEPALIVE
    assert flags[-1] == PROGRESS


def test_long_prelude_of_comments_is_a_keep_alive() -> None:
    """Gateways send comments until the first token; each framing keeps waiting."""
    for comments in ([": PROCESSING\n\n"] * 50, [": PROCESSING", ""] * 50):
        for kind in (str, str.encode):
            chunks = [kind(line) for line in [*comments, "data: x\n\n"]]
            flags, text = read(chunks)

            assert not any(flag & PROGRESS for flag in flags[:-1])
            assert flags[-1] == PROGRESS
            assert text == "x"


def test_event_taken_apart_by_a_library() -> None:
    """`raw_events` of an SDK gives objects with event and data."""
    ping = ServerSentEvent(event="ping", data='{"type": "ping"}')
    text = ServerSentEvent(event="content_block_delta", data=json.dumps(EVENTS[2]))
    done = ServerSentEvent(data="[DONE]")

    assert read([ping, text, done]) == ([KEEPALIVE, PROGRESS, TERMINAL], "Grüße: ")


@given(st.lists(st.binary(max_size=12) | st.text(max_size=12), max_size=10))
def test_no_bytes_raise(chunks: list[bytes | str]) -> None:
    """Any mix of text and bytes is classified and folded."""
    flags, text = read(chunks)

    assert all(0 <= flag <= 15 for flag in flags)
    assert isinstance(text, str)


@given(st.lists(st.sampled_from(["data:", "event: ", "{", "}", ":", " ", "x", "\n", "\r", ""])))
def test_no_scrap_of_a_line_raises(chunks: list[str]) -> None:
    """Scraps of SSE in any order are read without an error, and text as far as it goes."""
    reader = Classifier()
    flags = [reader.classify(chunk) for chunk in chunks]
    text = reader.fold(chunks, final=True).text

    assert all(0 <= flag <= 15 for flag in flags)
    if reader.plain_text:
        assert text == "".join(chunks)
