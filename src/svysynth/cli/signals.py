"""Signals: the command line ends within seconds of a signal, whatever it is computing.

A signal handler in Python waits until the library at work returns, which may take minutes. The signal's number,
however, is written to a pipe at once. A thread reads the pipe, gives the program a few seconds to end by itself, then
removes hidden folders and ends the process. For the ledger and for files this is the same as a kill, which they
survive.
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
"""Shows the cursor again, which progress bars hide."""


def end_soon_after_a_signal() -> None:
    """From now on every signal that ends the program takes effect within seconds; call it in the main thread only."""
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
