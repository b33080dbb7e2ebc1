"""What every bench here does in the same way: peers that take turns, and rows that are judged.

A bench is a pytest function. It makes a `Contest` of entrants, plays it through pytest-benchmark
(one of its rounds is one turn of every entrant, in order), and hands rows to `publish`. Everything
a row says is the median over rounds, with the smallest and the largest; a ratio is taken within
each round first. The collector is on, as in a program; garbage of others is collected before each
turn. CPU is that of the whole process, so that the timer thread counts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import subprocess
import sys
import timeit
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import rloop
import uvloop

T = TypeVar("T")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
    "rloop": rloop.new_event_loop,
}

ROUNDS = 7
"""At least so many rounds in a run that is published."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work a bench does: all of it, or a fast look."""

    quick: bool

    def pick(self, full: T, quick: T) -> T:
        """`full`, or `quick` in a quick run."""
        return quick if self.quick else full

    def rounds(self, full: int = 15, quick: int = 3) -> int:
        """Rounds to play."""
        if full < ROUNDS:
            raise ValueError(f"a run that is published has at least {ROUNDS} rounds")
        return self.pick(full, quick)


@dataclass(frozen=True, slots=True)
class Spread:
    """A median over rounds, with the smallest and the largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of these values."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Figure:
    """An absolute number of one entrant."""

    name: str
    value: Spread
    unit: str


@dataclass(frozen=True, slots=True)
class Check:
    """What a row promises, and whether it was kept. The median is what is judged."""

    what: str
    target: str
    value: Spread
    unit: str
    met: bool


def at_most(what: str, value: Spread, limit: float, unit: str = "x") -> Check:
    """A promise with an upper bound."""
    return Check(what, f"<= {limit:g}{_suffix(unit)}", value, unit, value.median <= limit)


def at_least(what: str, value: Spread, limit: float, unit: str = "x") -> Check:
    """A promise with a lower bound."""
    return Check(what, f">= {limit:g}{_suffix(unit)}", value, unit, value.median >= limit)


def _suffix(unit: str) -> str:
    return unit if unit in ("x", "%") else f" {unit}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list of figures to reach."""

    id: str
    work: str
    checks: tuple[Check, ...]
    figures: tuple[Figure, ...]
    rounds: int
    note: str = ""


def publish(benchmark: Any, *rows: Row) -> None:
    """Puts rows into the run's JSON, and on the screen."""
    benchmark.extra_info["rows"] = [asdict(row) for row in rows]
    for row in rows:
        print(f"\n{row.id}  {row.work} ({row.rounds} rounds)")
        for figure in row.figures:
            print(f"    {figure.name:<58} {show(figure.value, figure.unit)}")
        for check in row.checks:
            verdict = "met   " if check.met else "MISSED"
            shown = show(check.value, check.unit)
            print(f"  {verdict} {check.what:<52} {check.target:>10}   {shown}")


def show(value: Spread, unit: str) -> str:
    """A spread in so many digits as matter."""

    def digits(number: float) -> str:
        size = abs(number)
        places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 4
        return f"{number:,.{places}f}" if number else "0"

    middle = digits(value.median) + _suffix(unit)
    if value.low == value.high:
        return middle
    return f"{middle} ({digits(value.low)} to {digits(value.high)})"


Turn = Callable[[], float | Mapping[str, float]]
"""One entrant's turn: what it measured, or several things by name."""


class Contest:
    """Entrants that take turns: A B C, A B C, and so on.

    Args:
        entrants: By name, in order.
        slices: How many turns each has in a round, still in turns; their median is the round's.
            More of them, each shorter, for differences that a busy second would drown.
    """

    def __init__(self, entrants: Mapping[str, Turn], *, slices: int = 1) -> None:
        self._entrants = dict(entrants)
        self._slices = slices
        self._rounds: list[dict[str, Mapping[str, float]]] = []

    def play(self, benchmark: Any, *, rounds: int, warmup: int = 1) -> None:
        """Plays `rounds` rounds, after some that do not count."""
        benchmark.pedantic(self._round, rounds=rounds, iterations=1, warmup_rounds=warmup)
        del self._rounds[:-rounds]

    def _round(self) -> None:
        seen: dict[str, list[Mapping[str, float]]] = {name: [] for name in self._entrants}
        for _ in range(self._slices):
            for name, turn in self._entrants.items():
                gc.collect()
                value = turn()
                seen[name].append(value if isinstance(value, Mapping) else {"": value})
        self._rounds.append(
            {
                name: {what: median(value[what] for value in values) for what in values[0]}
                for name, values in seen.items()
            }
        )

    @property
    def rounds(self) -> int:
        """Rounds that count."""
        return len(self._rounds)

    def values(self, name: str, measure: str = "") -> list[float]:
        """What an entrant measured, round by round."""
        return [seen[name][measure] for seen in self._rounds]

    def spread(self, name: str, measure: str = "", *, times: float = 1.0) -> Spread:
        """What an entrant measured."""
        return Spread.of([value * times for value in self.values(name, measure)])

    def ratio(self, over: str, under: str, measure: str = "") -> Spread:
        """Of two entrants, round by round."""
        return Spread.of(_divide(self.values(over, measure), self.values(under, measure)))

    def added(self, name: str, base: str) -> Spread:
        """What an entrant takes beyond another, round by round."""
        return Spread.of(self._beyond(name, base))

    def added_percent(self, name: str, base: str) -> Spread:
        """The same in per cent of that other."""
        shares = _divide(self._beyond(name, base), self.values(base))
        return Spread.of([100 * share for share in shares])

    def added_ratio(self, over: str, under: str, base: str, measure: str = "") -> Spread:
        """Of what two entrants take beyond a third, round by round."""
        return Spread.of(
            _divide(self._beyond(over, base, measure), self._beyond(under, base, measure))
        )

    def _beyond(self, name: str, base: str, measure: str = "") -> list[float]:
        pairs = zip(self.values(name, measure), self.values(base, measure), strict=True)
        return [value - floor for value, floor in pairs]

    def figures(self, unit: str, *names: str) -> tuple[Figure, ...]:
        """What entrants measured, by default all of them, as it is."""
        return tuple(Figure(name, self.spread(name), unit) for name in names or self._entrants)


def _divide(over: Sequence[float], under: Sequence[float]) -> list[float]:
    # A difference of two measurements can come out as nothing or less. Then it is below what can be
    # told here, and everything is endlessly more.
    return [a / b if b > 0 else inf if a > 0 else 0.0 for a, b in zip(over, under, strict=True)]


def nanoseconds(statement: str, calls: int, **names: object) -> float:
    """What one execution of a statement takes, less an empty turn of the loop around it.

    `names` are local variables of the code that is timed.
    """
    setup = "; ".join(["import gc; gc.enable()", *(f"{name} = _names[{name!r}]" for name in names)])

    def run(body: str) -> float:
        return timeit.Timer(body, setup, globals={"_names": names}).timeit(calls)

    return (run(statement) - run("pass")) / calls * 1e9


def on_loop(kind: str, work: Callable[[asyncio.AbstractEventLoop], T]) -> T:
    """Runs blocking work inside a fresh running event loop, which is closed afterwards."""

    async def body() -> T:
        return work(asyncio.get_running_loop())

    return run_loop(kind, body)


def run_loop(kind: str, body: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine function on a fresh event loop of a kind."""

    async def main() -> T:
        return await body()

    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        return runner.run(main())


def cpu_seconds() -> float:
    """CPU this process has used so far, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that so many of the values do not exceed. `values` are sorted."""
    return values[min(len(values) - 1, int(q * len(values)))]


def spawn(script: str, *args: object) -> subprocess.Popen[str]:
    """Starts a bench file as a script of its own, in a child process."""
    command = [sys.executable, script, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(child: subprocess.Popen[str]) -> Any:
    """What a child printed as JSON."""
    output, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"{Path(str(child.args[1])).name} ended with {child.returncode}")  # type: ignore[index]
    return json.loads(output)
