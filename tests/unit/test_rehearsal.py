"""What a rehearsal leaves in the process that ranks are forked from: nothing."""

from __future__ import annotations

import threading

from dist_testing.procfs import open_files, threads_of
from dist_testing.rank.rehearsal import rehearse


def test_leaves_no_file_and_no_thread_open() -> None:
    """Each rank would inherit them."""
    before = open_files(), threads_of(threading.get_native_id())
    rehearse()
    assert (open_files(), threads_of(threading.get_native_id())) == before
