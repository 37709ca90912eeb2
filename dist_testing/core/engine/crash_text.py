"""Explains the end of a process by native code: from the rank's log, and from the signal that hangs in its handler."""

from __future__ import annotations

import re
import signal

from dist_testing.core.ground.procfs import blocked_signals, stat_of, threads_of

# "SIGABRT(6), PID: 20494, Thread 20494: " begins the native stack of a thread, in the order of /proc/self/task.
_THREAD = re.compile(r"^(?P<signal>SIG[A-Z0-9]+)\(\d+\), PID: \d+, Thread (?P<thread>\d+):\s*$")
# "frame #5: abort + 0xd3 (0x7f5d8ee44472 in /lib/x86_64-linux-gnu/libc.so.6)"
_FRAME = re.compile(r"^ ?frame #\d+: (?P<name>.*?) (?:\+ 0(?:x[0-9a-f]+)? )?\(0x[0-9a-f]+ in (?P<file>[^)]*)\)$")
_OF_HANDLER = "c10::FatalSignalHandler"
# Only the thread that got the signal is in this function; it makes the others print theirs.
_GOT_SIGNAL = f"{_OF_HANDLER}::fatalSignalHandler("
_LEFT_OUT = "<omitting python frames>"
# Begins the stack that is left.
_HEAD = "Native stack of "
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
# The kernel blocks a signal while its handler runs. Threads of libraries block many signals, or all.
_NUMBER_OF_BIT = {
    1 << (number - 1): int(number)
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
}
_FATAL = sum(_NUMBER_OF_BIT)
# A thread that also runs, or that a debugger has stopped, is not blocked.
_ASLEEP = ("S", "D")


def native_reason(log: str) -> str:
    """Return what native code said in a rank's log about the end of its process, in one line; "" for nothing."""
    found = ""
    for match in _REASONS.finditer(log):
        kind, text = next((kind, text.strip()) for kind, text in match.groupdict().items() if text is not None)
        if kind == "what" and found.startswith("terminate called"):
            found = f"{found}: {text}"
        elif not (kind == "undefined" and found):
            # A message about undefined behaviour ends nothing unless it is the only one.
            found = text
    return found


def thread_of_signal(log: str) -> int | None:
    """Return the kernel's number of the thread that got the signal that ended the process; None if it is not told."""
    thread = None
    for line in log.splitlines():
        if match := _THREAD.match(line):
            thread = int(match["thread"])
        elif _GOT_SIGNAL in line and _FRAME.match(line):
            return thread
    return None


def shorten_native_stacks(text: str) -> str:
    """Return the text with the native stack of the thread that got the signal only, and readable frames."""
    lines: list[str] = []
    name = ""
    # The frames of each thread, until the stacks end.
    threads: list[list[str]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            name = match["signal"]
            threads.append([])
        elif threads and (_FRAME.match(line) or line == _LEFT_OUT):
            threads[-1].append(line)
        elif not threads:
            lines.append(line)
        elif line.strip() and not line.startswith("signal lost waiting for stacktrace"):
            lines += [*_one_stack(name, threads), line]
            threads = []
    if threads:
        lines += _one_stack(name, threads)
    return "\n".join(lines)


def _one_stack(name: str, threads: list[list[str]]) -> list[str]:
    of_signal = next((frames for frames in threads if any(_GOT_SIGNAL in frame for frame in frames)), None)
    frames = threads[0] if of_signal is None else of_signal
    if _LEFT_OUT in frames:
        # The frames below have called the interpreter; the Python stack follows.
        frames = frames[: frames.index(_LEFT_OUT)]
    found = [match for match in map(_FRAME.match, frames) if match and _OF_HANDLER not in match["name"]]
    whose = "a thread" if of_signal is None else f"the thread that got {name}"
    others = [f"(native stacks of {len(threads) - 1} other thread(s) left out)"] if len(threads) > 1 else []
    return [
        f"{_HEAD}{whose} (most recent call first):",
        *(f"  {match['name']} in {match['file'].rpartition('/')[2]}" for match in found[:_MAX_FRAMES]),
        *others,
        "",
    ]


def fatal_block(lines: list[str]) -> int:
    """Return how many of the last lines belong to a native stack and what follows it; 0 if there is none."""
    for number, line in enumerate(lines):
        if line.startswith(_HEAD):
            return len(lines) - number
    return 0


def handled_signal(pid: int | None) -> int | None:
    """Return the fatal signal in whose handler a thread of a process seems to sleep; None if there is none.

    torch prints native stacks in its handler, and that takes memory. If the signal comes while the allocator is locked,
    as when the C library finds a damaged heap, the handler waits forever, and the rank hangs. A thread that has
    blocked one of these signals by itself looks the same.
    """
    for thread in threads_of(pid):
        number = _NUMBER_OF_BIT.get(blocked_signals(pid, thread) & _FATAL)
        if number is not None and "".join(stat_of(pid, thread)[:1]) in _ASLEEP:
            return number
    return None
