"""Stop a student's function that does not end, in the student's own kernel."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooLong(BaseException):
    """The function has not ended in time. A student's `except Exception` does not catch it."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TooLong inside the block after so many seconds.

    A bare `except:` catches it too. So it is raised once more at the next line inside the block: a
    line of that handler.

    The signal reaches the main thread only. Elsewhere, and on systems without the signal, there is
    no limit. SIGALRM is left to others, for example to pytest's own limit.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main or not hasattr(signal, "SIGVTALRM"):
        yield
        return
    outside = set(frames_from(sys._getframe()))

    def insist(frame, event, argument):
        if event == "line":
            raise TooLong  # Python ends the tracing then
        return insist

    def stop(number, frame):
        for one in frames_from(frame):
            if one not in outside:
                one.f_trace = insist
        sys.settrace(insist)  # last: it would stop these lines too
        raise TooLong

    tracing = sys.gettrace()
    before = signal.signal(signal.SIGVTALRM, stop)
    timer = threading.Timer(seconds, signal.pthread_kill, (main.ident, signal.SIGVTALRM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        sys.settrace(tracing)
        timer.cancel()
        timer.join()  # it does not fire after the handler is gone
        signal.signal(signal.SIGVTALRM, before)


def frames_from(frame) -> Iterator:
    while frame is not None:
        yield frame
        frame = frame.f_back
