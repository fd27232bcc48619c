"""A server that answers with whatever bytes it is given, by path; what it is not given is answered well."""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping

Answer = bytes | Callable[[socket.socket], None]
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def events(count: int = 4, **meta) -> bytes:
    """A whole answer of so many tokens."""
    return HEAD + b"".join(
        event(output_ids=list(range(n)), meta_info={"completion_tokens": n, **meta}) for n in range(1, count + 1)
    )


def event(_value=None, **fields) -> bytes:
    return b"data: " + (_value if isinstance(_value, bytes) else json.dumps(_value or fields).encode()) + b"\n\n"


def one(value) -> bytes:
    """An answer of one event."""
    return HEAD + event(value if isinstance(value, bytes) else json.dumps(value).encode())


def body(text: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)


def repeated(piece: bytes, times: int = 1 << 40, seconds: float = 0.0) -> Callable[[socket.socket], None]:
    """The same bytes over and over, with a pause between."""

    def answer(client: socket.socket) -> None:
        client.sendall(HEAD)
        for _ in range(times):
            client.sendall(piece)
            time.sleep(seconds)

    return answer


def hang(client: socket.socket) -> None:
    time.sleep(60)


class LyingServer:
    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> "LyingServer":
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            try:
                asked = b""
                while b"\r\n\r\n" not in asked:
                    if not (part := client.recv(65536)):
                        return
                    asked += part
                head, _, rest = asked.partition(b"\r\n\r\n")
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        left = int(line.split(b":")[1]) - len(rest)
                        while left > 0 and (part := client.recv(65536)):
                            left -= len(part)
                path = head.split()[1].decode()
                answer = self.answers.get(path, events() if path == "/generate" else body(b"{}"))
                client.sendall(answer) if isinstance(answer, bytes) else answer(client)
            except OSError:
                return
