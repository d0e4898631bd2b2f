"""Stop a student's function that does not end, in the student's own kernel."""

import signal
import sys
import threading
from collections.abc import Iterator


class TooLong(BaseException):
    """The function has not ended in time. A student's `except Exception` does not catch it."""


class limit:
    """Raise TooLong inside the `with` block after so many seconds.

    A bare `except:` catches it too. So it is raised once more at the next line inside the block: a
    line of that handler.

    The signal reaches the main thread only. Elsewhere, and on systems without the signal, there is
    no limit. SIGALRM is left to others, for example to pytest's own limit.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.timer = None

    def __enter__(self):
        main = threading.main_thread()
        if threading.current_thread() is not main or not hasattr(signal, "SIGVTALRM"):
            return
        self.outside = set(frames_from(sys._getframe()))
        self.tracing = sys.gettrace()
        self.before = signal.signal(signal.SIGVTALRM, self.stop)
        given = (main.ident, signal.SIGVTALRM)
        self.timer = threading.Timer(self.seconds, signal.pthread_kill, given)
        self.timer.daemon = True
        self.timer.start()

    def __exit__(self, *_):
        if self.timer is None:
            return
        self.timer.cancel()
        self.timer.join()  # it does not fire after the handler is gone
        signal.signal(signal.SIGVTALRM, self.before)
        sys.settrace(self.tracing)
        self.outside.clear()

    def stop(self, number, frame):
        inside = [one for one in frames_from(frame) if one not in self.outside]
        if any(one.f_code is limit.__exit__.__code__ for one in inside):
            return  # the block has ended in the meantime
        for one in inside:
            one.f_trace = insist
        sys.settrace(leave_alone)  # the frames above are traced only while there is a tracer
        raise TooLong


def insist(frame, event, argument):
    """Trace a frame that was on its way when the time was over: its next line is its last."""
    if event == "line":
        raise TooLong  # Python ends the tracing then
    return insist


def leave_alone(frame, event, argument):
    """Trace no frame that begins later: what catches everything is on its way already."""


def frames_from(frame) -> Iterator:
    while frame is not None:
        yield frame
        frame = frame.f_back
