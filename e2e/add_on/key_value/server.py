"""The server: a process that keeps keys in memory, `python -m key_value.server`. It ends with its standard input.

A request is a line of words, and so is the answer: `set KEY VALUE`, `add KEY NUMBER`, `get KEY`, `delete KEY`, `keys`.
"""

from __future__ import annotations

import contextlib
import socketserver
import sys
import threading

_KEYS: dict[str, str] = {}
_LOCK = threading.Lock()


def _answer(words: list[str]) -> str:
    with _LOCK:
        match words:
            case ["set", key, value]:
                _KEYS[key] = value
                return value
            case ["add", key, number]:
                _KEYS[key] = str(int(_KEYS.get(key, "0")) + int(number))
                return _KEYS[key]
            case ["get", key]:
                return _KEYS.get(key, "")
            case ["delete", key]:
                return _KEYS.pop(key, "")
            case ["keys"]:
                return " ".join(sorted(_KEYS))
    raise ValueError(f"no request of a key-value server: {words!r}")


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Answer the requests of one client."""
        # A rank that is killed leaves its connection.
        with contextlib.suppress(ConnectionError):
            for line in self.rfile:
                self.wfile.write(f"{_answer(line.decode().split())}\n".encode())


def main() -> None:
    """Print the port, and serve until standard input ends."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
