"""A proxy before a server of this machine that holds its answers back: object storage is further away than that.

It is a process of its own, so that it takes no turns of the interpreter that measures. Connecting takes no longer; the
bytes of an answer all come later by the same time, so a long one is as fast as without.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK_BYTES = 2**16
_CHUNKS_HELD_MAX = 256


@contextmanager
def late_answers(port: int, added_ms: float) -> Iterator[str]:
    """Run the proxy, and yield the address by which the server is reached through it.

    Args:
        port: Where the server listens.
        added_ms: How much later each answer comes.
    """
    words = [sys.executable, "-m", "tests.helpers.storages.late_answers", str(port), str(added_ms)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def _serve(port: int, added_s: float) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, server_writer, 0.0), _copy(server_reader, writer, added_s))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, added_s: float) -> None:
    """Copy what comes, each chunk later by `added_s`, to the end of the connection."""
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_HELD_MAX)
    now_s = asyncio.get_running_loop().time

    async def read() -> None:
        data = b"begun"
        while data:
            with suppress(ConnectionError):
                data = b""
                data = await source.read(_CHUNK_BYTES)
            await held.put((now_s() + added_s, data))

    reading = asyncio.create_task(read())
    while (one := await held.get())[1]:
        await asyncio.sleep(one[0] - now_s())
        target.write(one[1])
        with suppress(ConnectionError):
            await target.drain()
    await reading
    target.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 1e3))
