"""`stallwatch turns`: what an operator and a machine get to see of a store."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stallwatch import (
    HardIdleError,
    Outcome,
    Phase,
    SQLiteStore,
    Status,
    StreamIdleError,
    ToolRecord,
    ToolState,
)
from stallwatch.cli import main
from stallwatch.cli.turns import SCHEMA
from store_tools import gone, owned, so_far
from test_outcome import OUTCOMES


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a turn of each status, a running one, and one whose process is gone."""
    found = tmp_path / "turns.db"
    now = time.time()
    with SQLiteStore(found) as store:
        for number, (status, outcome) in enumerate(OUTCOMES.items()):
            data = {**outcome.to_dict(), "started_at": now - 100 - number}
            store.finish(f"{status}-{number}", Outcome.from_dict(data), timeline={"schema": 1})
        store.start("live-1", so_far(turn="still at it", started_at=now - 3))
        left = owned(store, gone(), monkeypatch)
        with store._connection() as connection:
            connection.execute("UPDATE turns SET id = 'left-1' WHERE id = ?", (left,))
    return found


def rows(printed: str) -> dict[str, str]:
    """The lines below the head, by the id they begin with."""
    return {line.split()[0]: line for line in printed.splitlines()[1:]}


def test_turns_are_listed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each: status, cause, phase, idle, how much text was kept, and the name."""
    status = main(["turns", str(path)])
    printed = capsys.readouterr().out
    found = rows(printed)

    assert status == 0
    assert printed.splitlines()[0].split()[:5] == ["id", "status", "cause", "phase", "idle"]
    assert printed.splitlines()[1].split()[:2] == ["live-1", "running"]  # the latest start
    assert "stream_idle" in found["stalled-"]
    assert "awaiting_llm" in found["stalled-"]
    assert "90.5 s" in found["stalled-"]
    assert found["complete"].split()[1:3] == ["completed", "done"]
    assert found["complete"].endswith("answer")
    assert "user_cancelled" in found["cancelle"]
    assert "running, gone" in found["left-1"]
    assert "1 turn has no process any more: --sweep" in printed


def test_looking_changes_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only --sweep writes: then what was left is interrupted, and stays so."""
    main(["turns", str(path)])
    main(["turns", str(path), "left"])
    before = capsys.readouterr().out
    main(["turns", str(path), "--sweep"])
    after = rows(capsys.readouterr().out)
    with SQLiteStore(path, read_only=True) as store:
        found = store.get("left-1")

    assert before.count("running, gone") == 2
    assert after["left-1"].split()[1] == "interrupted"
    assert found is not None
    assert found.status == "interrupted"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--status", "stalled"], ["stalled-"]),
        (["--status", "running"], ["live-1", "left-1"]),
        (["--status", "failed", "--status", "stalled"], ["stalled-", "failed-3"]),
        (["--name", "still at it"], ["live-1"]),
        (["--name", "answer", "--status", "stalled"], []),
        (["--limit", "1"], ["live-1"]),
        (["--limit", "1", "--status", "failed", "--status", "stalled"], ["stalled-"]),
    ],
)
def test_filters(
    path: Path, capsys: pytest.CaptureFixture[str], options: list[str], ids: list[str]
) -> None:
    """By status, several of them, by name, and so many; the latest start comes first."""
    main(["turns", str(path), *options, "--json"])
    found = json.loads(capsys.readouterr().out)["turns"]

    assert [one["id"][:8] for one in found] == ids


def test_nothing_to_list(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store without such turns says so."""
    assert main(["turns", str(path), "--name", "nobody"]) == 0
    assert capsys.readouterr().out == "no turns\n"


def test_one_turn_is_shown_whole(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the beginning of its id: cause, measurements, kept text, arguments, what came late."""
    assert main(["turns", str(path), "stall"]) == 0
    printed = capsys.readouterr().out
    shown = {line[:12].strip(): line[12:] for line in printed.splitlines() if line[:12].strip()}

    assert shown["status"] == "stalled"
    assert shown["cause"].startswith("stream_idle: ")
    assert shown["measured"] == "idle 90.5 s, limit 90.0 s, lateness 0.50 s"
    assert shown["also"].startswith("hard_idle: ")
    assert shown["phase"] == "awaiting_llm, seq 3"
    assert shown["kept text"] == "ab"
    assert "bash" in shown["arguments"]
    assert shown["late"] == "the body returned"
    assert max(map(len, printed.splitlines())) <= 80


def test_tools_are_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its state, time and cause; the list counts those that did not complete."""
    tools = (
        ToolRecord(
            name="bash",
            state=ToolState.UNRESPONSIVE,
            elapsed=12.0,
            cause=HardIdleError(idle=540.0, limit=540.0),
        ),
        ToolRecord(name="grep", state=ToolState.COMPLETED, elapsed=0.5),
    )
    with SQLiteStore(path) as store:
        store.finish("tooled", Outcome(status=Status.STALLED, turn="with tools", tools=tools))
    main(["turns", str(path), "--name", "with tools"])
    main(["turns", str(path), "tooled"])
    printed = capsys.readouterr().out

    assert "2 (1 unresponsive)" in printed
    assert "tool        bash: unresponsive after 12.0 s, hard_idle: " in printed
    assert "tool        grep: completed after 0.50 s" in printed


def test_json_is_whole(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Machines get the record as it is stored; of one turn, what there is to draw as well."""
    main(["turns", str(path), "--json"])
    many = json.loads(capsys.readouterr().out)
    main(["turns", str(path), "stalled-1", "--json"])
    one = json.loads(capsys.readouterr().out)
    by_id: dict[str, Any] = {row["id"]: row for row in many["turns"]}

    assert many["schema"] == one["schema"] == SCHEMA
    assert len(many["turns"]) == len(OUTCOMES) + 2
    again = Outcome.from_dict(by_id["stalled-1"]["outcome"])
    assert isinstance(again.cause, StreamIdleError)
    assert again.cause.phase is Phase.AWAITING_LLM
    assert (by_id["live-1"]["owner_gone"], by_id["left-1"]["owner_gone"]) == (False, True)
    assert by_id["stalled-1"]["owner_gone"] is None
    assert "timeline" not in by_id["stalled-1"]
    assert one["turns"][0] == {**by_id["stalled-1"], "timeline": {"schema": 1}}


@pytest.mark.parametrize(
    ("turn", "says"),
    [("nobody", "no turn in"), ("", "7 turns have"), ("c", "2 turns have")],
)
def test_a_turn_that_is_not_one(
    path: Path, capsys: pytest.CaptureFixture[str], turn: str, says: str
) -> None:
    """An id that nothing begins with, or more than one does, is an error that tells."""
    assert main(["turns", str(path), turn]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"stallwatch turns: {says}")
    assert printed.out == ""


def test_a_file_that_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is not made, and another kind of file is refused, with one line each."""
    other = tmp_path / "other"
    other.write_text("not a database, but long enough to be taken for one\n" * 50)
    statuses = [
        main(["turns", str(one), *more])
        for one in (tmp_path / "missing", other, tmp_path)
        for more in ((), ("--sweep",))
    ]
    printed = capsys.readouterr()

    assert statuses == [1] * 6
    assert len(printed.err.splitlines()) == 6
    assert printed.out == ""
    assert [one.name for one in tmp_path.iterdir()] == ["other"]


def test_text_cannot_drive_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape codes that a model or a tool wrote are shown, not sent."""
    path, nasty = tmp_path / "turns.db", "\x1b[2Jgone\x07 \u202eback\nnext"
    with SQLiteStore(path) as store:
        store.finish("t", Outcome(status=Status.STALLED, turn=nasty, text=nasty, partial="\x9b"))
    main(["turns", str(path)])
    main(["turns", str(path), "t"])
    printed = capsys.readouterr().out

    assert all(sign.isprintable() or sign == "\n" for sign in printed)
    assert r"\x1b[2Jgone\x07 \u202eback" in printed


def test_a_reader_that_leaves_is_no_error(path: Path) -> None:
    """Piped into `head`, the command ends quietly."""
    code = "import sys; from stallwatch.cli import main; sys.exit(main(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "turns", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    said = child.stderr.read()
    child.stderr.close()

    assert (child.wait(60), said) == (0, b"")
