"""Installed loops and drop-ins around forks, exits, and other people's programs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from stallwatch import aio

pytestmark = pytest.mark.slow


def child(code: str, *flags: str) -> tuple[int, str, str]:
    """Run a program: exit status, output, errors."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


FORK = """
    import asyncio, multiprocessing, os, sys, time
    from stallwatch import aio

    async def overdue():
        started = time.monotonic()
        try:
            async with aio.timeout(0.3):
                await asyncio.sleep(5)
        except TimeoutError:
            return time.monotonic() - started

    def work():
        sys.exit(0 if 0.3 <= aio.run(overdue()) < 4 else 5)

    async def main():
        loop = asyncio.get_running_loop()
        kept = loop.call_later(60, print, "the parent's timer fired")
        async with aio.timeout(60):
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            process.join(30)
        kept.cancel()
        assert await overdue() < 4
        return process.exitcode

    print(aio.run(main()))
"""


def test_a_forked_child_runs_drop_ins() -> None:
    """Its `timeout` works, and the parent's timers never fire in it. Real time: 0.3 s of 4 s.

    Prevents: a native runtime that was started in the parent hangs the child for ever.
    """
    status, output, errors = child(FORK, "-W", "ignore")

    assert (status, output, errors) == (0, "0\n", "")


EXIT = """
    import asyncio, random, sys
    from stallwatch import aio

    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(200):
            loop.call_later(random.random() * 0.03, lambda: None)
            loop.call_later(3600, lambda: None)
        await asyncio.sleep(random.random() * 0.03)

    for _ in range(20):
        aio.run(main())
    loop = aio.new_event_loop()
    loop.call_later(3600, print)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
"""


def test_exit_with_installed_loops_is_silent() -> None:
    """Loops that end with timers armed, and an exit after them, leave nothing to say."""
    assert child(EXIT, "-X", "dev") == (0, "", "")


SERVER = """
    import asyncio, sys
    from aiohttp import web, ClientSession, ClientTimeout
    from stallwatch import aio

    async def answer(request):
        await asyncio.sleep(float(request.query["after"]))
        return web.Response(text="ok")

    async def main():
        app = web.Application()
        app.router.add_get("/", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with ClientSession(timeout=ClientTimeout(total=0.5)) as session:
            async with session.get(f"http://127.0.0.1:{port}/?after=0.01") as response:
                print(await response.text())
            try:
                await session.get(f"http://127.0.0.1:{port}/?after=30")
            except TimeoutError as error:
                print(type(error).__name__)
        await runner.cleanup()

    RUN(main())
"""

ANYIO = """
    import asyncio, anyio, sys
    from stallwatch import aio

    async def main():
        with anyio.move_on_after(0.05) as scope:
            await anyio.sleep(30)
        print(scope.cancelled_caught)
        try:
            with anyio.fail_after(0.05):
                await anyio.sleep(30)
        except TimeoutError:
            print("late")
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0.01)
        send, receive = anyio.create_memory_object_stream(1)
        async with send, receive:
            await send.send("chunk")
            print(await receive.receive())

    RUN(main())
"""

HTTPX = """
    import asyncio, httpx, sys
    from stallwatch import aio

    async def serve(reader, writer):
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        if b"GET /slow" in head:
            await reader.read()  # until the client has given up
            writer.close()
            return done.set()
        writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\nconnection: close\\r\\n\\r\\nok")
        writer.close()

    async def main():
        global done
        done = asyncio.Event()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with httpx.AsyncClient(timeout=0.5, trust_env=False) as client:
            print((await client.get(f"http://127.0.0.1:{port}/")).text)
            try:
                await client.get(f"http://127.0.0.1:{port}/slow")
            except httpx.ReadTimeout as error:
                print(type(error).__name__)
        await done.wait()
        await asyncio.sleep(0.05)
        server.close()

    RUN(main())
"""


def complaints(errors: str) -> list[str]:
    """What a program wrote to stderr, but for how slow this machine is."""
    return [line for line in errors.splitlines() if not line.startswith("Executing <")]


@pytest.mark.parametrize("program", [SERVER, ANYIO, HTTPX], ids=["aiohttp", "anyio", "httpx"])
@pytest.mark.parametrize("debug", [False, True])
def test_other_peoples_programs_run_unchanged(program: str, debug: bool) -> None:
    """A program prints the same with `install` on, and in debug mode nothing is complained of."""
    flags = ("-X", "dev") if debug else ()
    own = child(program.replace("RUN(main())", "asyncio.run(main())"), *flags)
    ours = child(program.replace("RUN(main())", "aio.run(main())"), *flags)

    assert own[0] == 0, own[2]
    assert ours[:2] == own[:2]
    assert complaints(ours[2]) == complaints(own[2]) == []


def test_a_bare_fork_of_a_running_loop() -> None:
    """`os.fork` inside a loop: the child makes a loop of its own that works, the parent goes on."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        handle = loop.call_later(60, print)
        pid = os.fork()
        if pid == 0:
            asyncio._set_running_loop(None)
            try:
                aio.run(aio.sleep(0.05))
            except BaseException:
                os._exit(1)
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        handle.cancel()
        await aio.sleep(0.01)
        return os.waitstatus_to_exitcode(status)

    assert aio.run(main()) == 7
