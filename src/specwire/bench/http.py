"""HTTP to a server on this machine: as little as streaming needs, on asyncio alone.

Not httpx: its lines have no limit, it unpacks what is compressed to any size, and each token's way through its
layers would be measured with the server's own time. What comes is only claimed: every line, header, length and body
has a limit here, and time is the caller's (`asyncio.timeout` around it).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specwire.errors import SpecwireError

LINE_LIMIT = 8 << 20  # bytes: a cumulative answer with its metadata is one line
BODY_LIMIT = 8 << 20  # bytes of an answer that is read whole
HEAD_LIMIT = 64 << 10  # bytes of one line of a head
HEADER_LIMIT = 256  # lines of a head
SHOWN = 300  # characters of an error's text

_PART = 1 << 16
_LENGTH = re.compile(r"[0-9]{1,15}")
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,12}")


class ServerSays(Exception):
    """The server answered with an error, not in HTTP, or beyond what is read of an answer."""


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
        """Raises SpecwireError for anything but http://LOOPBACK[:PORT]; a password in it is not repeated."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
            port = 30000 if parts.port is None else parts.port
        except ValueError:
            raise SpecwireError("--url is no address: wanted http://127.0.0.1:PORT.") from None
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise SpecwireError(
                f"--url with a user, a password or a query is not taken: wanted http://127.0.0.1:PORT, as http://{host}:{port}."
            )
        if parts.scheme != "http" or not _is_loopback(host) or parts.path not in ("", "/") or port == 0:
            raise SpecwireError(f"{url}: only a server on this machine can be measured, as http://127.0.0.1:PORT.")
        return cls(host, port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback and "%" not in host
    except ValueError:
        return False


async def post_lines(address: Address, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
    """The answer's lines as they come. Raises OSError, and ServerSays for any status but 200."""
    async with _exchange(address, "POST", path, body) as (status, parts):
        if status != 200:
            raise ServerSays(f"HTTP {status} from {path}: {shown(await _whole(parts, _PART, cut=True))}")
        async for line in _lines(parts):
            yield line


async def ask(
    address: Address, method: str, path: str, timeout: float, body: Mapping[str, Any] | None = None
) -> tuple[int, str]:
    """Status and text of one answer. Raises OSError, ServerSays or TimeoutError."""
    async with asyncio.timeout(timeout):
        async with _exchange(address, method, path, body) as (status, parts):
            return status, await _whole(parts, BODY_LIMIT)


def shown(text: str) -> str:
    """The beginning of what a server sent, as a sentence can hold it."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:SHOWN]).strip()


@contextlib.asynccontextmanager
async def _exchange(
    address: Address, method: str, path: str, body: Mapping[str, Any] | None
) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    """The status and the body's bytes, as they come; the connection is closed at the end."""
    data = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nConnection: close\r\n"
    if data:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=HEAD_LIMIT)
    try:
        writer.write(head.encode() + b"\r\n" + data)
        status, headers = await _head(reader)
        yield status, _body(reader, headers)
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await _line(reader)).split(None, 2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not re.fullmatch(rb"[1-5][0-9][0-9]", first[1]):
        raise ServerSays(
            f"not an HTTP answer: {b' '.join(first)[:80]!r}" if first else "closed the connection without an answer"
        )
    headers: dict[str, str] = {}
    for _ in range(HEADER_LIMIT):
        if not (line := (await _line(reader)).strip()):
            return int(first[1]), headers
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    raise ServerSays(f"sent a head of more than {HEADER_LIMIT} lines")


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body's bytes as they come: chunked, of a known length, or up to the end of the connection."""
    if (packed := headers.get("content-encoding", "identity")) != "identity":
        raise ServerSays(f"sent a compressed answer ({shown(packed)}) that nobody asked for")
    transfer = headers.get("transfer-encoding", "").lower()
    if transfer == "chunked":
        while size := await _chunk_size(reader):
            async for part in _exactly(reader, size):
                yield part
            if await _line(reader) not in (b"\r\n", b"\n"):
                raise ServerSays("sent a chunk longer than it said")
    elif transfer:
        raise ServerSays(f"sent an answer in an encoding that is not known here ({shown(transfer)})")
    elif "content-length" in headers:
        if not _LENGTH.fullmatch(headers["content-length"]):
            raise ServerSays(f"sent a Content-Length that is no number: {shown(headers['content-length'])}")
        async for part in _exactly(reader, int(headers["content-length"])):
            yield part
    else:
        while part := await reader.read(_PART):
            yield part


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    line = await _line(reader)
    size = line.split(b";")[0].strip()
    if not _CHUNK_SIZE.fullmatch(size):
        raise ServerSays(
            f"sent a chunk size that is no number: {line[:80]!r}" if line else "closed the connection early"
        )
    return int(size, 16)


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    left = size
    while left:
        part = await reader.read(min(left, _PART))
        if not part:
            raise ServerSays(f"closed the connection {left:,} bytes before the end of the {size:,} that it announced")
        left -= len(part)
        yield part


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held: list[bytes] = []
    size = 0
    async for part in parts:
        first, *others = part.split(b"\n")
        held.append(first)
        size += len(first)
        if size > LINE_LIMIT:
            raise ServerSays(f"sent a line of more than {LINE_LIMIT:,} bytes")
        for other in others:
            yield b"".join(held).rstrip(b"\r")
            held, size = [other], len(other)
    if size:
        yield b"".join(held)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:  # asyncio's word for a line beyond the limit
        raise ServerSays(f"sent a line of more than {HEAD_LIMIT:,} bytes in a head") from None


async def _whole(parts: AsyncIterator[bytes], limit: int, cut: bool = False) -> str:
    held, size = [], 0
    async for part in parts:
        held.append(part)
        size += len(part)
        if size > limit:
            if cut:
                break
            raise ServerSays(f"sent an answer of more than {limit:,} bytes")
    return b"".join(held)[:limit].decode("utf-8", "replace")
