"""Tables: what each provider event kind counts as, and what it carries.

One rule a kind. `docs/chunks.md` renders these tables and a test keeps the two equal.

How the doubtful ones were decided. A keep-alive layer can repeat for ever, so what a stuck peer
can send must never count. What can only come out of the model, or out of a tool that the provider
ran, may count, since each such event is sent once per thing produced. Hence:

* `signature_delta` counts: with the thinking text withheld it is the only sign of a whole block.
* `thinking_delta` with an empty text and an `estimated_tokens` step counts, for the same reason.
* Citations and annotations count: the model writes them, they are just not text.
* The *result* of a tool run by the provider counts (`*_tool_result` blocks, `*_call.completed`),
  its announcement (`in_progress`, `searching`, `generating`) does not: one search may be as slow
  as `progress_idle`, a chain of searches that finish may go on.
* A tool call that shows only its name does not count: arguments are still awaited. Arguments that
  come whole with the announcement do.
* `response.output_item.done` counts for items whose inside was never streamed (reasoning without
  a summary, tool runs); for messages and function calls it repeats the deltas.
* An unknown event kind counts: a false cancel costs more than a late one. An unknown block start
  does not, a start being an announcement whatever it starts.
"""

from __future__ import annotations

from typing import NamedTuple

PROGRESS = 1
TERMINAL = 2
KEEPALIVE = 4
ERROR = 8

NOTHING = ""
TEXT = "text"
REASONING = "reasoning"
TOOL_ARGS = "tool arguments"
TOOL_START = "tool name"


class Rule(NamedTuple):
    """What one kind counts as.

    Attributes:
        flags: The flags, given in any case if `fields` is empty.
        fields: The flags hold only if one of these is not empty; the first one is what is carried.
        carries: What the first field is a piece of.
        twin: A helper stream sends this beside the raw event: ignored once a raw one was seen.
    """

    flags: int = 0
    fields: tuple[str, ...] = ()
    carries: str = NOTHING
    twin: bool = False


_QUIET = Rule()
_COUNTS = Rule(PROGRESS)
_END = Rule(TERMINAL)
_FAILS = Rule(TERMINAL | ERROR)
_ALIVE = Rule(KEEPALIVE)
_TOOL_DELTA = Rule(PROGRESS, ("delta",), TOOL_ARGS)

COMMON: dict[str, Rule] = {
    "ping": _ALIVE,
    "keepalive": _ALIVE,
    "heartbeat": _ALIVE,
    "error": _FAILS,
}

ANTHROPIC: dict[str, Rule] = {
    "message_start": _QUIET,
    "message_delta": _QUIET,
    "content_block_stop": _QUIET,
    "message_stop": _END,
}

ANTHROPIC_DELTAS: dict[str, Rule] = {
    "text_delta": Rule(PROGRESS, ("text",), TEXT),
    "thinking_delta": Rule(PROGRESS, ("thinking", "estimated_tokens"), REASONING),
    "signature_delta": Rule(PROGRESS, ("signature",)),
    "input_json_delta": Rule(PROGRESS, ("partial_json",), TOOL_ARGS),
    "citations_delta": Rule(PROGRESS, ("citation",)),
    # The summary that replaces old history: made by the model, but no part of the answer.
    "compaction_delta": Rule(PROGRESS, ("content", "encrypted_content")),
}

# `*_tool_result` blocks that are not listed count as well: see `block_rule`.
ANTHROPIC_BLOCKS: dict[str, Rule] = {
    "text": Rule(PROGRESS, ("text",), TEXT),
    "thinking": Rule(PROGRESS, ("thinking",), REASONING),
    "redacted_thinking": Rule(PROGRESS, ("data",)),
    "tool_use": Rule(PROGRESS, ("input",), TOOL_START),
    "server_tool_use": Rule(PROGRESS, ("input",), TOOL_START),
    "mcp_tool_use": Rule(PROGRESS, ("input",), TOOL_START),
    "web_search_tool_result": _COUNTS,
    "web_fetch_tool_result": _COUNTS,
    "code_execution_tool_result": _COUNTS,
    "bash_code_execution_tool_result": _COUNTS,
    "text_editor_code_execution_tool_result": _COUNTS,
    "tool_search_tool_result": _COUNTS,
    "advisor_tool_result": _COUNTS,
    "mcp_tool_result": _COUNTS,
    "container_upload": _COUNTS,
    "compaction": Rule(PROGRESS, ("content", "encrypted_content")),
    "fallback": _QUIET,
    "mcp_tool_listing": _QUIET,
}

RESPONSES: dict[str, Rule] = {
    "response.created": _QUIET,
    "response.queued": _QUIET,
    "response.in_progress": _QUIET,
    "response.completed": _END,
    "response.incomplete": _END,
    "response.failed": _FAILS,
    "response.content_part.added": _QUIET,
    "response.content_part.done": _QUIET,
    "response.output_text.delta": Rule(PROGRESS, ("delta",), TEXT),
    "response.output_text.done": _QUIET,
    "response.output_text.annotation.added": _COUNTS,
    "response.refusal.delta": Rule(PROGRESS, ("delta",), TEXT),
    "response.refusal.done": _QUIET,
    "response.reasoning_text.delta": Rule(PROGRESS, ("delta",), REASONING),
    "response.reasoning_text.done": _QUIET,
    "response.reasoning_summary_part.added": _QUIET,
    "response.reasoning_summary_part.done": _QUIET,
    "response.reasoning_summary_text.delta": Rule(PROGRESS, ("delta",), REASONING),
    "response.reasoning_summary_text.done": _QUIET,
    "response.audio.delta": Rule(PROGRESS, ("delta",)),
    "response.audio.done": _QUIET,
    "response.audio.transcript.delta": Rule(PROGRESS, ("delta",), TEXT),
    "response.audio.transcript.done": _QUIET,
    "response.function_call_arguments.delta": _TOOL_DELTA,
    "response.function_call_arguments.done": _QUIET,
    "response.custom_tool_call_input.delta": _TOOL_DELTA,
    "response.custom_tool_call_input.done": _QUIET,
    "response.mcp_call_arguments.delta": _TOOL_DELTA,
    "response.mcp_call_arguments.done": _QUIET,
    "response.mcp_call.in_progress": _QUIET,
    "response.mcp_call.completed": _COUNTS,
    "response.mcp_call.failed": _COUNTS,
    "response.mcp_list_tools.in_progress": _QUIET,
    "response.mcp_list_tools.completed": _COUNTS,
    "response.mcp_list_tools.failed": _COUNTS,
    "response.code_interpreter_call_code.delta": _TOOL_DELTA,
    "response.code_interpreter_call_code.done": _QUIET,
    "response.code_interpreter_call.in_progress": _QUIET,
    "response.code_interpreter_call.interpreting": _QUIET,
    "response.code_interpreter_call.completed": _COUNTS,
    "response.file_search_call.in_progress": _QUIET,
    "response.file_search_call.searching": _QUIET,
    "response.file_search_call.completed": _COUNTS,
    "response.web_search_call.in_progress": _QUIET,
    "response.web_search_call.searching": _QUIET,
    "response.web_search_call.completed": _COUNTS,
    "response.image_generation_call.in_progress": _QUIET,
    "response.image_generation_call.generating": _QUIET,
    "response.image_generation_call.partial_image": _COUNTS,
    "response.image_generation_call.completed": _COUNTS,
    "response.shell_call_command.added": Rule(PROGRESS, ("command",), TOOL_ARGS),
    "response.shell_call_command.delta": _TOOL_DELTA,
    "response.shell_call_command.done": _QUIET,
    "response.shell_call_output_content.delta": _COUNTS,
    "response.shell_call_output_content.done": _QUIET,
    # Sent when summary content was sampled, without that content: the only sign of it.
    "response.compaction.compacting": _COUNTS,
}

RESPONSES_ITEMS_ADDED: dict[str, Rule] = {
    "function_call": Rule(PROGRESS, ("arguments",), TOOL_START),
    "custom_tool_call": Rule(PROGRESS, ("input",), TOOL_START),
    "mcp_call": Rule(PROGRESS, ("arguments",), TOOL_START),
}

RESPONSES_ITEMS_DONE: dict[str, Rule] = {
    "message": _QUIET,
    "function_call": _QUIET,
    "custom_tool_call": _QUIET,
}

# Events that SDK helper streams (`messages.stream()`, `chat.completions.stream()`) make up beside
# the raw event, plus frames that only wrap one.
HELPERS: dict[str, Rule] = {
    "text": Rule(PROGRESS, ("text",), TEXT, twin=True),
    "thinking": Rule(PROGRESS, ("thinking",), REASONING, twin=True),
    "signature": Rule(PROGRESS, ("signature",), twin=True),
    "input_json": Rule(PROGRESS, ("partial_json",), TOOL_ARGS, twin=True),
    "citation": Rule(PROGRESS, ("citation",), twin=True),
    "compaction": Rule(PROGRESS, ("content",), twin=True),
    "content.delta": Rule(PROGRESS, ("delta",), TEXT, twin=True),
    "content.done": _QUIET,
    "refusal.delta": Rule(PROGRESS, ("delta",), TEXT, twin=True),
    "refusal.done": _QUIET,
    "tool_calls.function.arguments.delta": Rule(
        PROGRESS, ("arguments_delta",), TOOL_ARGS, twin=True
    ),
    "tool_calls.function.arguments.done": _QUIET,
    "logprobs.content.delta": _QUIET,
    "logprobs.content.done": _QUIET,
    "logprobs.refusal.delta": _QUIET,
    "logprobs.refusal.done": _QUIET,
}

KINDS: dict[str, Rule] = {**COMMON, **ANTHROPIC, **RESPONSES, **HELPERS}

NESTED: dict[str, tuple[str, dict[str, Rule], Rule]] = {
    "content_block_delta": ("delta", ANTHROPIC_DELTAS, _COUNTS),
    "content_block_start": ("content_block", ANTHROPIC_BLOCKS, _QUIET),
    "response.output_item.added": ("item", RESPONSES_ITEMS_ADDED, _QUIET),
    "response.output_item.done": ("item", RESPONSES_ITEMS_DONE, _COUNTS),
}
"""Kinds that are decided by the kind of what they hold: field, table, rule for the rest."""

WRAPPERS: dict[str, str] = {"chunk": "chunk", "raw_response_event": "data"}
"""Kinds that only wrap another chunk (openai chat helper, openai-agents): field."""

WRAPPER_CLASSES: dict[str, str] = {"StreamEvent": "event", "CompletionEvent": "data"}
"""Classes without a kind that only wrap a chunk (claude-agent-sdk, mistral): class name, field."""

CHAT_DELTA: dict[str, str] = {
    "content": TEXT,
    "refusal": TEXT,
    "reasoning_content": REASONING,
    "reasoning": REASONING,
    "reasoning_details": NOTHING,  # structured twin of `reasoning`, or sealed reasoning alone
    "audio": NOTHING,
    "images": NOTHING,
}
"""Fields of a chat `delta` that count when not empty; `tool_calls`, `function_call` apart."""

GOOGLE_PART: dict[str, str] = {
    "text": TEXT,
    "functionCall": TOOL_ARGS,
    "executableCode": NOTHING,
    "codeExecutionResult": NOTHING,
    "inlineData": NOTHING,
    "fileData": NOTHING,
    "thoughtSignature": NOTHING,
}
"""Fields of a Google part that count when not empty; `text` is reasoning if `thought` is true."""

RESULT_SUFFIX = "_tool_result"


def nested_rule(rules: dict[str, Rule], kind: object, default: Rule) -> Rule:
    """The rule for what a nested kind holds; results of tools we have no name for yet count."""
    if type(kind) is not str:
        return default
    rule = rules.get(kind)
    if rule is None:
        return _COUNTS if kind.endswith(RESULT_SUFFIX) else default
    return rule
