"""Whether the remote executor or cache of a lane answers, before anything waits for it.

Bazel asks it in the background, and waits for the answer in the first action that needs one, for `--remote_timeout`
and all `--remote_retries`: with what uploads of torch need, an hour at an address where nothing is ever said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bazel_process import INFRASTRUCTURE, INTERRUPTED, REMOTE_FAILED, run_bazel
from build_events import EventsError, read_events

__all__ = ["Refusal", "ask_endpoint"]

# Seconds for one call, and Bazel makes two: time for a first word, and the end is there within ten seconds.
_ANSWER_S = 4
# Nothing is analysed and no worker is asked for, as there is no target. What is left is the profile, which Bazel sends
# to the endpoint where it has one, and to do so it has to wait for the endpoint's answer.
_PROBE = (
    f"--remote_timeout={_ANSWER_S}",
    "--remote_retries=1",
    "--target_pattern_file=",
    "--generate_json_trace_profile=yes",
    "--experimental_build_event_upload_strategy=remote",
    # Whoever keeps a list of builds is told of those that test something.
    "--bes_backend=",
)
# Bazel's words. What follows in brackets is about its own buffers.
_REASON = re.compile(r"Failed to query remote execution capabilities: (.+?)(?:\. \[.*)?$", re.MULTILINE)
_ERROR = re.compile(r"ERROR: (.+)")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a lane cannot begin.

    Attributes:
        status: Exit status that says so.
        text: What there is to say.
    """

    status: int
    text: str


def ask_endpoint(bazel: Sequence[str], workspace: Path, folder: Path) -> Refusal | None:
    """Ask the remote executor, or cache, of a lane for a first word.

    Args:
        bazel: The program, its command and all flags, without targets.
        workspace: Where Bazel runs.
        folder: For files.

    Returns:
        None if it answers, or there is none; also if Bazel does not come that far, which the lane will show.

    Raises:
        ReportError: If Bazel cannot be started.
    """
    events, output = folder / "probe.json", folder / "probe.log"
    status = run_bazel([*bazel, *_PROBE, f"--build_event_json_file={events}"], workspace, output=output)
    if status == INTERRUPTED:
        return Refusal(status, "interrupted while the executor was asked for an answer")
    if status not in INFRASTRUCTURE:
        return None
    said = output.read_text(encoding="utf-8", errors="replace")
    address, reason = _address(events), _REASON.search(said)
    if not address and reason is None:
        return None
    reason = reason or _ERROR.search(said)
    return Refusal(
        REMOTE_FAILED,
        f"{address or 'an address that Bazel does not tell'}: no use of the remote executor: "
        f"{reason[1] if reason else f'Bazel ended with status {status}'}.\n"
        "It is down, or it is no Remote Execution service, or a firewall or proxy before it keeps silent.\n"
        "The address is that of --remote_executor or --remote_cache, among the flags or in a .bazelrc; "
        "`bazel run @dist_testing//tools/rbe -- up` starts the one of --config=rbe_local.",
    )


def _address(events: Path) -> str:
    """The endpoint that Bazel has made of all flags and files; empty if there is none, or Bazel does not tell."""
    options: dict[str, str] = {}
    try:
        for event in read_events(events):
            line = event.get("structuredCommandLine", {})
            if line.get("commandLineLabel") == "canonical":
                for section in line.get("sections", []):
                    for option in section.get("optionList", {}).get("option", []):
                        # The last one counts.
                        options[option.get("optionName")] = option.get("optionValue", "")
    except EventsError:
        return ""
    return options.get("remote_executor") or options.get("remote_cache") or ""
