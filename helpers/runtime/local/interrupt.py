"""Let an interrupt of the kernel end a call once, and never stop the cleanup halfway."""

import signal
import sys
import threading
from contextlib import contextmanager


class Interrupts:
    """Delays interrupts while entered, except for one inside `allowed()`.

    Python prints and forgets an interrupt that falls into a `__del__`. Then the next one counts.

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
        if self.open and not self.under_way():  # one is enough: the cleanup follows
            self.interrupt(number, frame)
        else:
            self.held = True

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
