"""Stop a student's function that does not end, in the student's own kernel."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooLong(BaseException):
    """The function has not ended in time. A student's `except Exception` does not catch it."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TooLong inside the block after so many seconds.

    The signal reaches the main thread only. Elsewhere, and on systems without the signal, there is
    no limit. SIGALRM is left to others, for example to pytest's own limit.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main or not hasattr(signal, "SIGVTALRM"):
        yield
        return

    def stop(number, frame):
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    timer = threading.Timer(seconds, signal.pthread_kill, (main.ident, signal.SIGVTALRM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it does not fire after the handler is gone
        signal.signal(signal.SIGVTALRM, before)
