"""Computes the digests that name files in remote caches. Python's hashlib does not have BLAKE3."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

# Length of a digest in hexadecimal -> the function that Bazel means if it gives no name.
FUNCTIONS = {32: "md5", 40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
# BLAKE3 is computed in Python, about 0.5 MB/s. A larger file counts if its size and its place are right. Bytes.
_MAX_BLAKE3_BYTES = 4 << 20
_PART_BYTES = 1 << 20


def digest_of(path: Path, function: str, size: int) -> str | None:
    """Return the digest of a file in hexadecimal.

    Args:
        path: The file.
        function: Name of the digest function, such as "sha256".
        size: Size of the file in bytes.

    Returns:
        None if the function is unknown, or if it would take too long.
    """
    if function == "blake3":
        return blake3(path.read_bytes()) if size <= _MAX_BLAKE3_BYTES else None
    if function not in FUNCTIONS.values():
        return None
    # MD5 and SHA-1 only find files here.
    found = hashlib.new(function, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(_PART_BYTES):
            found.update(data)
    return found.hexdigest()


_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_MIXES = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_START, _END, _PARENT, _ROOT = 1, 2, 4, 8
_WORD = 0xFFFFFFFF
_CHUNK_BYTES = 1024
_BLOCK_BYTES = 64


def blake3(data: bytes) -> str:
    """Return the BLAKE3 digest of `data` in hexadecimal, 64 characters. Python's hashlib does not have it."""
    chunks = max(1, -(-len(data) // _CHUNK_BYTES))
    stack: list[Sequence[int]] = []
    last: Callable[[int], Sequence[int]]
    for number in range(chunks):
        last = _chunk(data[number * _CHUNK_BYTES : (number + 1) * _CHUNK_BYTES], number)
        if number == chunks - 1:
            break
        value = last(0)
        total = number + 1
        while total % 2 == 0:
            value = _parent(stack.pop(), value)(0)
            total //= 2
        stack.append(value)
    while stack:
        last = _parent(stack.pop(), last(0))
    return b"".join(word.to_bytes(4, "little") for word in last(_ROOT)).hex()


def _chunk(data: bytes, number: int) -> Callable[[int], Sequence[int]]:
    """Return a function that hashes a chunk with more flags for its last block."""
    value: Sequence[int] = _IV
    blocks = [data[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES)] or [b""]
    for index, block in enumerate(blocks[:-1]):
        value = _compressed(value, _words(block), number, len(block), _START if index == 0 else 0)
    flags = _END | (_START if len(blocks) == 1 else 0)
    return lambda more: _compressed(value, _words(blocks[-1]), number, len(blocks[-1]), flags | more)


def _parent(left: Sequence[int], right: Sequence[int]) -> Callable[[int], Sequence[int]]:
    return lambda more: _compressed(_IV, [*left, *right], 0, _BLOCK_BYTES, _PARENT | more)


def _words(block: bytes) -> list[int]:
    padded = block.ljust(_BLOCK_BYTES, b"\0")
    return [int.from_bytes(padded[at : at + 4], "little") for at in range(0, _BLOCK_BYTES, 4)]


def _compressed(value: Sequence[int], words: Sequence[int], counter: int, length: int, flags: int) -> Sequence[int]:
    state = [*value, *_IV[:4], counter & _WORD, counter >> 32, length, flags]
    for _ in range(7):
        for index, (a, b, c, d) in enumerate(_MIXES):
            for word, turn, other in ((words[2 * index], 16, 12), (words[2 * index + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & _WORD
                turned = state[d] ^ state[a]
                state[d] = (turned >> turn | turned << (32 - turn)) & _WORD
                state[c] = (state[c] + state[d]) & _WORD
                turned = state[b] ^ state[c]
                state[b] = (turned >> other | turned << (32 - other)) & _WORD
        words = [words[place] for place in _PERMUTATION]
    return [state[place] ^ state[place + 8] for place in range(8)]
