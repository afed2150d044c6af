"""The HTTP port Prometheus scrapes: GET /metrics, nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.broker.observability.metrics import render

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

REQUEST_TIMEOUT_S = 5


async def serve_metrics(broker: BrokerServer, host: str, port: int) -> asyncio.Server:
    """Listen for scrapes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = head.split(b" ", 2)[:2]
                if method == b"GET" and path.split(b"?")[0] in (b"/metrics", b"/"):
                    status, body = b"200 OK", render(broker).encode()
                else:
                    status, body = b"404 Not Found", b"GET /metrics\n"
                writer.write(
                    b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)
                )
                await writer.drain()
        except (TimeoutError, ValueError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, start_serving=False)
