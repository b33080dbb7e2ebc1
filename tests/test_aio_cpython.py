"""CPython's own tests, from the standard library of the running Python, against `stallwatch.aio`.

They run in a child process, in which the names of asyncio are those of `stallwatch.aio`, or every
selector loop is installed on the wheel. Nothing of them is copied.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("test") is None
        or importlib.util.find_spec("test.test_asyncio") is None,
        reason="this Python was built without the tests of its standard library",
    ),
]

RUN = """
import asyncio, sys, unittest
from stallwatch import aio

how, *names = sys.argv[1:]
if how == "names":
    import asyncio.tasks, asyncio.timeouts
    for module in (asyncio, asyncio.timeouts):
        module.timeout, module.timeout_at, module.Timeout = aio.timeout, aio.timeout_at, aio.Timeout
    for module in (asyncio, asyncio.tasks):
        module.wait_for, module.sleep = aio.wait_for, aio.sleep
else:
    own = asyncio.SelectorEventLoop.__init__
    def init(self, *args, **keywords):
        own(self, *args, **keywords)
        aio.install(self)
    asyncio.SelectorEventLoop.__init__ = init
suite = unittest.defaultTestLoader.loadTestsFromNames([f"test.test_asyncio.{n}" for n in names])
ran = unittest.TextTestRunner(verbosity=0).run(suite)
print("RAN", ran.testsRun, flush=True)
sys.exit(not ran.wasSuccessful())
"""


def run(how: str, *names: str) -> int:
    """Run modules of CPython's tests; they pass, and this is how many there were."""
    child = subprocess.run(
        [sys.executable, "-c", RUN, how, *names], capture_output=True, text=True, timeout=110
    )

    assert child.returncode == 0, child.stderr[-5000:]
    return int(child.stdout.rpartition("RAN ")[2])


@pytest.mark.parametrize("name", ["test_timeouts", "test_waitfor"])
def test_timeout_and_wait_for(name: str) -> None:
    """`timeout`, `timeout_at`, `Timeout`, `wait_for` and `sleep` in the place of asyncio's."""
    assert run("names", name) > 10


@pytest.mark.parametrize(
    ("names", "many"),
    [
        (("test_timeouts", "test_waitfor", "test_locks", "test_queues", "test_taskgroups"), 150),
        (("test_base_events", "test_runners", "test_context"), 100),
        (("test_events",), 100),
        (("test_tasks",), 300),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_loops_on_the_wheel(names: tuple[str, ...], many: int) -> None:
    """asyncio's own loop tests, its timers' included, on loops with `install` done."""
    assert run("installed", *names) > many
