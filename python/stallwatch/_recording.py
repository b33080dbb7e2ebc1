"""What a turn writes into its store, and when: at its start, when it has changed, at its end.

The store's calls block, so they are made by a `Writer`; nothing here ever waits for one on the
loop's thread. One call at most is under way, and a checkpoint that is not done yet when the next
is due is the next one: a slow store gets fewer checkpoints, not a longer queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from stallwatch._stallwatch import Alarm
from stallwatch._store import OutcomeStore, new_turn_id
from stallwatch._store_writer import writer_of
from stallwatch._timeline import Timeline

if TYPE_CHECKING:
    from stallwatch._outcome import Outcome
    from stallwatch._tools import Tools
    from stallwatch._tracker import PhaseTracker

__all__ = ["Recording", "reserve"]

START_PATIENCE: Final = 1.0
"""Seconds that a turn waits, before it begins, for the store to have its start."""

RESERVE: Final = 1.0
"""Seconds of `cleanup` that are kept for the store; at most a tenth of it."""

_TRIES: Final = 2


def reserve(cleanup: float | None) -> float:
    """Seconds of `cleanup` that belong to the store alone."""
    return RESERVE if cleanup is None else min(RESERVE, cleanup / 10)


class Recording:
    """The record of one turn in a store.

    Args:
        store: Where.
        tracker: Whose dirty mark says that the phase has changed.
        streams: The turn's guarded streams.
        tools: Its tool calls.
        snapshot: The record that is true if the process ends now.
        name: The turn's name, for the log.

    Attributes:
        turn_id: The turn's id in the store.
        timeline: To be told the turn's events.
    """

    def __init__(
        self,
        store: OutcomeStore,
        tracker: PhaseTracker,
        streams: Sequence[Any],
        tools: Tools,
        snapshot: Callable[[], Outcome],
        name: str | None,
    ) -> None:
        self.turn_id = new_turn_id()
        self.timeline = Timeline()
        self._store = store
        self._writer = writer_of(store)
        self._tracker = tracker
        self._streams = streams
        self._tools = tools
        self._snapshot = snapshot
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._on_due)
        self._saved: object = None
        self._busy = False
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> None:
        """Write the turn as running; come back when it is, or after a second."""
        written = self._loop.create_future()
        record = self._snapshot()
        self._submit(lambda: self._store.start(self.turn_id, record), lambda _: _set(written))
        await asyncio.wait((written,), timeout=START_PATIENCE)
        self._alarm.set(self._alarm.now() + self.timeline.interval)

    def finish(self, outcome: Outcome) -> None:
        """Write the terminal record, once."""
        self._alarm.close()
        timeline = self._drawn()
        self._submit(
            lambda: self._store.finish(self.turn_id, outcome, timeline=timeline),
            lambda _: _set(self._over),
            tries=_TRIES,
        )

    async def finished(self, seconds: float | None) -> asyncio.CancelledError | None:
        """Wait for the terminal record, whatever cancels come meanwhile.

        Returns:
            The cancel that came meanwhile, if one did.
        """
        cancelled: asyncio.CancelledError | None = None
        end = None if seconds is None else self._loop.time() + seconds
        while not self._over.done():
            left = None if end is None else end - self._loop.time()
            if left is not None and left <= 0:
                break
            try:
                await asyncio.wait((self._over,), timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    @property
    def is_finished(self) -> bool:
        """Whether the store has, or has refused, the terminal record."""
        return self._over.done()

    # --- checkpoints ---

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        self._alarm.set(self._alarm.now() + self.timeline.interval)
        state = self._state()
        if self._busy or (state == self._saved and not self._tracker.is_dirty):
            return
        record, timeline = self._snapshot(), self._drawn()
        self._busy = True

        def done(saved: bool) -> None:
            self._busy = False
            if not saved:
                return
            self._saved = state
            if self._state() == state:  # else it has become dirty again meanwhile
                self._tracker.take_dirty()

        self._submit(lambda: self._store.checkpoint(self.turn_id, record, timeline=timeline), done)

    def _state(self) -> object:
        """Differs from the one before whenever there is something new to write."""
        chunks = sum(one.stats.chunks for one in self._streams)
        tools = tuple(one.state for one in self._tools.records)
        return self._tracker.seq, len(self._streams), chunks, tools

    def _drawn(self) -> dict[str, Any]:
        self.timeline.sample(self._streams)
        return self.timeline.to_dict()

    def _submit(
        self, call: Callable[[], object], done: Callable[[bool], object], *, tries: int = 1
    ) -> None:
        """Has the store called in its thread, and `done` in the loop, told whether it worked."""

        def write() -> None:
            written = False
            for attempt in range(1, tries + 1):
                try:
                    call()
                except Exception:
                    logging.getLogger("stallwatch").exception(
                        "the store could not write turn %s (%s), attempt %d of %d",
                        self._name,
                        self.turn_id,
                        attempt,
                        tries,
                    )
                else:
                    written = True
                    break
            try:
                self._loop.call_soon_threadsafe(done, written)
            except RuntimeError:
                return  # the loop is closed: nobody waits

        self._writer.submit(write)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
