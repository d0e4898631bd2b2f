"""An interrupt of the kernel ends a call once, and never leaves the clearing up half done."""

import signal
import threading
from contextlib import contextmanager


class Interrupts:
    """Holds interrupts back while entered, but for the first that comes inside `allowed()`.

    One that was held back is delivered at the end, unless an error is on its way out already.
    Outside the main thread, where no interrupt arrives, it does nothing.
    """

    def __enter__(self):
        self.open = self.held = False
        self.before = None
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):  # else interrupts are ignored, or none of Python's business
                self.before = before
                signal.signal(signal.SIGINT, self.handle)
        return self

    def __exit__(self, kind, *_):
        if self.before:
            signal.signal(signal.SIGINT, self.before)
            if self.held and kind is None:
                signal.raise_signal(signal.SIGINT)

    def handle(self, number, frame):
        if self.open:
            self.open = False  # one is enough: what follows clears up
            self.before(number, frame)
        else:
            self.held = True

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
