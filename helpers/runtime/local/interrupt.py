"""Let an interrupt of the kernel end a call once, and never stop the cleanup halfway."""

import signal
import sys
import threading
import weakref
from contextlib import contextmanager

AGAIN_SECONDS = 0.01
FINALIZE = weakref.finalize.__call__.__code__


class Interrupts:
    """Delays interrupts while entered, except for one inside `allowed()`.

    Python prints and forgets an error of a finalizer. So an interrupt that falls into a `__del__`
    or a `weakref.finalize` is sent again after it.

    A delayed interrupt arrives at the end, unless an error is on its way out already. Outside the
    main thread, which receives all interrupts, this does nothing.
    """

    def __enter__(self):
        self.open = self.held = False
        self.before = None
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):  # otherwise interrupts are ignored, or Python does not handle them
                self.before = before
                signal.signal(signal.SIGINT, self.handle)
        return self

    def __exit__(self, kind, *_):
        if self.before:
            signal.signal(signal.SIGINT, self.before)
            if self.held and kind is None:
                self.interrupt(signal.SIGINT, None)

    def handle(self, number, frame):
        if not self.open or self.under_way():  # one is enough: the cleanup follows
            self.held = True
        elif finalizing(frame):
            args = threading.get_ident(), number
            threading.Timer(AGAIN_SECONDS, signal.pthread_kill, args).start()
        else:
            self.interrupt(number, frame)

    def under_way(self) -> bool:
        """Does an interrupt end the call already?"""
        error = sys.exception()
        while error is not None and getattr(error, "_ends", None) is not self:
            error = error.__context__
        return error is not None

    def interrupt(self, number, frame):
        """Interrupt as before. A notebook then shows one line, and no frames of this package."""
        try:
            self.before(number, frame)
        except KeyboardInterrupt as error:
            error._ends = self
            error._render_traceback_ = lambda: ["KeyboardInterrupt: the ranks are stopped."]
            raise

    @contextmanager
    def allowed(self):
        self.open = True
        try:
            if self.held:
                self.held = False
                signal.raise_signal(signal.SIGINT)
            yield
        finally:
            self.open = False


def finalizing(frame) -> bool:
    """Is a finalizer among the functions that this frame stands in?"""
    while frame is not None and frame.f_code is not FINALIZE and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
