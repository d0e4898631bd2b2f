"""Show the source of the package's code in a notebook, so that no code is written twice."""

import inspect


def show(thing):
    """Display the source of a function, class or module: highlighted in a notebook, else plain.

    Raises:
        TypeError: it has no Python source (a built-in, an instance).
    """
    from IPython import get_ipython
    from IPython.display import Code, display

    source = inspect.getsource(thing)
    if get_ipython() is None:
        print(source)
    else:
        display(Code(source, language="python"))
