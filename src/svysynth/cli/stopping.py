"""Stopping: the command line ends within seconds of a signal, whatever it is computing.

A signal handler of Python waits until the library that is at work returns, which may take minutes. But the signal is
written to a pipe at once. A thread reads there, gives the program a few seconds to end by itself, then clears away what
is hidden and ends the process. To the ledger and to files that is no more than a kill.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from svysynth.core.hidden_folders import clear_own

GRACE = 3.0
"""Seconds in which the program may end by itself."""
STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
SHOW_CURSOR = b"\x1b[?25h"
"""Progress bars hide it."""


def end_soon_after_a_signal() -> None:
    """From now on no signal that ends the program is kept waiting; only the main thread may call this."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()


def _watch(reader: int) -> None:
    while True:
        (number,) = os.read(reader, 1)
        if number in STOPS:
            time.sleep(GRACE)
            clear_own()
            if sys.stderr is not None and sys.stderr.isatty():
                os.write(sys.stderr.fileno(), SHOW_CURSOR)
            os._exit(128 + number)
