"""Asks whether the remote executor or cache of a CI job answers, before the job waits for it.

Bazel connects in the background. The first action that needs the answer waits for it, for `--remote_timeout` and all
`--remote_retries`. With the limits that uploads of torch need, that is an hour for an address that never answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bazel_process import INFRASTRUCTURE, INTERRUPTED, REMOTE_FAILED, run_bazel
from build_events import EventsError, read_events

# Limit for one call, and Bazel makes two: together they end within ten seconds. Seconds.
_ANSWER_S = 4
# There is no target, so Bazel analyses nothing and asks for no worker. It still writes the profile, and it sends the
# profile to the endpoint if there is one. For that it has to wait for the endpoint's answer.
_PROBE = (
    f"--remote_timeout={_ANSWER_S}",
    "--remote_retries=1",
    "--target_pattern_file=",
    "--generate_json_trace_profile=yes",
    "--experimental_build_event_upload_strategy=remote",
    # A service that lists builds must see only the builds that test something.
    "--bes_backend=",
)
# Bazel's message. The part in brackets is about its own buffers.
_REASON = re.compile(r"Failed to query remote execution capabilities: (.+?)(?:\. \[.*)?$", re.MULTILINE)
_ERROR = re.compile(r"ERROR: (.+)")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a CI job cannot begin."""

    status: int  # exit status of the job
    text: str  # message for the user


def ask_endpoint(bazel: Sequence[str], workspace: Path, folder: Path) -> Refusal | None:
    """Ask the remote executor or cache of a CI job for a first answer.

    Given are Bazel's program, its command and all flags, without targets. Return None if it answers or there is none,
    and if Bazel fails earlier; the job then shows why.

    Raises:
        ReportError: If Bazel cannot be started.
    """
    events, output = folder / "probe.json", folder / "probe.log"
    status = run_bazel([*bazel, *_PROBE, f"--build_event_json_file={events}"], workspace, output=output)
    if status == INTERRUPTED:
        return Refusal(status, "interrupted while waiting for the executor's first answer")
    if status not in INFRASTRUCTURE:
        return None
    said = output.read_text(encoding="utf-8", errors="replace")
    address, reason = _address(events), _REASON.search(said)
    if not address and reason is None:
        return None
    reason = reason or _ERROR.search(said)
    return Refusal(
        REMOTE_FAILED,
        f"{address or 'an unknown address'}: the remote executor cannot be used: "
        f"{reason[1] if reason else f'Bazel ended with status {status}'}.\n"
        "It is down, or it is not a Remote Execution service, or a firewall or proxy in front of it does not answer.\n"
        "--remote_executor or --remote_cache names the address, among the flags or in a .bazelrc; "
        "`bazel run @dist_testing//tools/rbe -- up` starts the executor of --config=rbe_local.",
    )


def _address(events: Path) -> str:
    """Return the endpoint that results from all flags and files; empty if there is none or Bazel does not report it."""
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
