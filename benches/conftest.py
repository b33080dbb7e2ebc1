"""`--quick`, the machine's description, and the rows that go into the run's JSON."""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from harness import Scale

_PEERS = ("stallwatch", "uvloop", "rloop", "anyio", "async-timeout", "pytest-benchmark")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a fast look; never published")


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    machine_info.clear()  # a host name is nobody's business
    machine_info.update(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        libc=" ".join(platform.libc_ver()),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        compiler=platform.python_compiler(),
        versions={name: version(name) for name in _PEERS},
        gc="on" if gc.isenabled() else "off",
        quick=bool(config.getoption("--quick")),
        load_before=config.stash[_LOAD],
        load_after=os.getloadavg()[0],
        seconds=time.monotonic() - config.stash[_START],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LOAD] = os.getloadavg()[0]
    config.stash[_START] = time.monotonic()


_LOAD = pytest.StashKey[float]()
_START = pytest.StashKey[float]()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or sys.platform
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    """How much work a bench does."""
    return Scale(quick=bool(request.config.getoption("--quick")))


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """What was left behind is out of the collector's way; the collector stays on."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
