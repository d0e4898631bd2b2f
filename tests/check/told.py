"""What a verdict says of a wrong answer."""


def told(verdict, hint: str):
    """The answer is wrong, and the hint names the mistake."""
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def said(verdict, words: str):
    """The answer is wrong, and the finding or the hint names the mistake."""
    assert verdict.status == "wrong", verdict
    assert words in f"{verdict.finding} {verdict.hint}", verdict
