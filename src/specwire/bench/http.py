"""HTTP to a server on this machine: as little as streaming needs, on asyncio alone."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specwire.errors import SpecwireError

LONGEST_LINE = 1 << 26  # a cumulative answer with its metadata is one line


class ServerSays(Exception):
    """The server answered with an error, or not in HTTP."""


@dataclass(frozen=True)
class Address:
    """Where the server is. Only loopback: these commands load a server, and never somebody else's."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises SpecwireError for anything but http://LOOPBACK[:PORT]."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
        try:
            port = parts.port or 30000
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if parts.scheme != "http" or not loopback or parts.path not in ("", "/"):
            raise SpecwireError(f"{url}: only a server on this machine can be measured, as http://127.0.0.1:PORT.")
        return cls(host, port)


async def post_lines(address: Address, path: str, body: dict[str, Any], silence: float) -> AsyncIterator[bytes]:
    """The answer's lines as they come. Raises ServerSays for any status but 200, TimeoutError after silence."""
    async with _exchange(address, "POST", path, body, silence) as (status, lines):
        if status != 200:
            raise ServerSays(f"HTTP {status} from {path}: {await _whole(lines)}")
        async for line in lines:
            yield line


async def ask(
    address: Address, method: str, path: str, timeout: float, body: dict[str, Any] | None = None
) -> tuple[int, str]:
    """Status and text of one answer. Raises OSError, ServerSays or TimeoutError."""
    async with asyncio.timeout(timeout):
        async with _exchange(address, method, path, body, timeout) as (status, lines):
            return status, await _whole(lines)


@contextlib.asynccontextmanager
async def _exchange(address: Address, method: str, path: str, body: dict[str, Any] | None, silence: float):
    data = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nConnection: close\r\n"
    if data:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    async with asyncio.timeout(silence):
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=LONGEST_LINE)
    try:
        writer.write(head.encode() + b"\r\n" + data)
        status, headers = await _head(reader, silence)
        yield status, _lines(_body(reader, headers, silence))
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader, silence: float) -> tuple[int, dict[str, str]]:
    first = (await _line(reader, silence)).split(None, 2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
        raise ServerSays(
            f"not an HTTP answer: {b' '.join(first)[:80]!r}" if first else "closed the connection without an answer"
        )
    headers = {}
    while line := (await _line(reader, silence)).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return int(first[1]), headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], silence: float) -> AsyncIterator[bytes]:
    """The body's bytes as they come: chunked, of a known length, or up to the end of the connection."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await _line(reader, silence)).split(b";")[0].strip() or b"!", 16):
            async with asyncio.timeout(silence):
                yield await reader.readexactly(size)
                await reader.readexactly(2)
        return
    left = int(headers["content-length"]) if "content-length" in headers else None
    while left is None or left > 0:
        async with asyncio.timeout(silence):
            part = await reader.read(1 << 16 if left is None else min(left, 1 << 16))
        if not part:
            if left:
                raise ServerSays(f"closed the connection {left} bytes before the answer's end")
            return
        left = left - len(part) if left is not None else None
        yield part


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
    if rest:
        yield rest


async def _line(reader: asyncio.StreamReader, silence: float) -> bytes:
    async with asyncio.timeout(silence):
        return await reader.readline()


async def _whole(lines: AsyncIterator[bytes]) -> str:
    return "\n".join([line.decode("utf-8", "replace") async for line in lines])
