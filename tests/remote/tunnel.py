"""A tunnel from a plain port to a server that speaks TLS, as sidecars of CI machines make it.

Not every build of Bazel can speak TLS: Debian's has no library for it.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

_BYTES = 1 << 16


@contextmanager
def tunnel(port: int, flags: Mapping[str, str]) -> Iterator[int]:
    """Forward connections to a port of this machine by TLS.

    Args:
        port: The server's port.
        flags: Bazel's flags for TLS: `tls_certificate`, and perhaps `tls_client_certificate` and `tls_client_key`.

    Yields:
        The plain port, on the loopback address.
    """
    context = ssl.create_default_context(cafile=flags["tls_certificate"])
    # gRPC is HTTP/2.
    context.set_alpn_protocols(["h2"])
    if "tls_client_certificate" in flags:
        context.load_cert_chain(flags["tls_client_certificate"], flags["tls_client_key"])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except OSError:
            writer.close()
            return
        # Cancelled at the end of the tunnel.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))

    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(forward, "127.0.0.1", 0), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_BYTES):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    # A connection that has just been accepted may still start a task.
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)
