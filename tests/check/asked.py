"""Which inputs does a check draw? For the tests of each exercise: grading must ask anew."""

import pickle
from collections.abc import Callable

import torch

from helpers.check import elsewhere, hidden

SECRET = 20_261


def drawn_anew(inputs: Callable[[], object]) -> bool:
    """Whether `inputs()` is always the same in the student's own check, and not while grading."""
    usual = pickle.dumps(numbers(inputs()))
    again = pickle.dumps(numbers(inputs()))
    with hidden.drawn_from(SECRET):
        return usual == again != pickle.dumps(numbers(inputs()))


def asked(check: Callable, solution: Callable) -> list:
    """The arguments of each call that the check of an exercise makes in this process."""
    place = Listening()
    with elsewhere.at(place):
        assert check(solution)
    return place.questions


class Listening(elsewhere.Here):
    def __init__(self):
        self.questions = []

    def call(self, fn, arguments):
        self.questions.append(numbers(arguments))
        return super().call(fn, arguments)


def numbers(value):
    """The value, its tensors as lists: pickles of equal tensors may differ."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.tolist()
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if type(value) is dict:
        return {key: numbers(one) for key, one in value.items()}
    return type(value)(map(numbers, value)) if type(value) in (list, tuple) else value
