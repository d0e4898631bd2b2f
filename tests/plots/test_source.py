"""`show` displays a function's source."""

from IPython.utils.capture import capture_output

from helpers.plots.source import show


def example():
    return "shown"


def test_show():
    with capture_output() as captured:
        show(example)
    assert 'return "shown"' in captured.outputs[0].data["text/plain"] + captured.stdout
