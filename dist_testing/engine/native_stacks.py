"""Reads what native code has written to a rank's log before its process ended."""

from __future__ import annotations

import re

# "SIGABRT(6), PID: 20494, Thread 20494: " begins the native stack of a thread; that of the fatal signal comes first.
_THREAD = re.compile(r"^SIG[A-Z0-9]+\(\d+\), PID: \d+, Thread \d+:\s*$")
# "frame #5: abort + 0xd3 (0x7f5d8ee44472 in /lib/x86_64-linux-gnu/libc.so.6)"
_FRAME = re.compile(r"^ ?frame #\d+: (?P<name>.*?) (?:\+ 0(?:x[0-9a-f]+)? )?\(0x[0-9a-f]+ in (?P<file>[^)]*)\)$")
_OF_HANDLER = "c10::FatalSignalHandler"
_LEFT_OUT = "<omitting python frames>"
# Limit of the frames of the thread that got the signal.
_MAX_FRAMES = 40
# What the C and C++ libraries and the sanitizers say about the end that they are about to cause; the last line counts.
_REASONS = re.compile(
    r"^(?:SUMMARY: (?P<sanitizer>\w+Sanitizer: .+)"
    r"|(?P<terminate>terminate called .+)|  what\(\):  (?P<what>.+)"
    r"|(?P<glibc>(?:free|malloc|realloc|munmap_chunk|corrupted|double free|\*\*\* ).*(?:\(|corrupt|detected|invalid).*)"
    r"|(?P<asserted>.+: .+: Assertion `.+' failed\.)"
    r"|(?P<undefined>\S+:\d+:\d+: runtime error: .+))$",
    re.MULTILINE,
)


def native_reason(log: str) -> str:
    """Return what native code said about the end of its process, in one line; "" if it said nothing.

    Args:
        log: The end of the rank's output.
    """
    found = ""
    for match in _REASONS.finditer(log):
        kind, text = next((kind, text.strip()) for kind, text in match.groupdict().items() if text is not None)
        if kind == "what" and found.startswith("terminate called"):
            found = f"{found}: {text}"
        elif not (kind == "undefined" and found):
            # A message about undefined behaviour ends nothing unless it is the only one.
            found = text
    return found


def shorten_native_stacks(text: str) -> str:
    """Return the text with the native stack of the thread that got the signal only, and readable frames."""
    lines: list[str] = []
    threads = frames = 0
    is_native = False
    for line in text.splitlines():
        if _THREAD.match(line):
            threads += 1
            is_native = True
            if threads == 1:
                lines.append(f"Native stack of the thread that got {line.partition('(')[0]} (most recent call first):")
            continue
        match = _FRAME.match(line)
        if is_native and (match or line == _LEFT_OUT):
            if threads == 1 and match and _OF_HANDLER not in match["name"] and frames < _MAX_FRAMES:
                frames += 1
                lines.append(f"  {match['name']} in {match['file'].rpartition('/')[2]}")
            elif threads == 1 and not match:
                # The frames below have called the interpreter; the Python stack follows.
                frames = _MAX_FRAMES
            continue
        if is_native and (not line.strip() or line.startswith("signal lost waiting for stacktrace")):
            continue
        if is_native:
            is_native = False
            if threads > 1:
                lines.append(f"(native stacks of {threads - 1} other thread(s) left out)")
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def fatal_block(lines: list[str]) -> int:
    """Return how many of the last lines belong to a native stack and what follows it; 0 if there is none."""
    for number, line in enumerate(lines):
        if line.startswith("Native stack of the thread"):
            return len(lines) - number
    return 0
