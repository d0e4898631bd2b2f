"""Show the source of what a notebook calls, so that nothing is written twice."""

import inspect


def show(thing):
    """Display the source of a function, a class or a module, highlighted in a notebook.

    Raises:
        TypeError: it has no Python source (a built-in, an instance).
    """
    from IPython.display import Code, display

    display(Code(inspect.getsource(thing), language="python"))
