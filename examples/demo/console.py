"""Prints the steps of the demo and compares expected with actual results."""

import json
import time
from typing import Callable


class DemoFailed(Exception):
    """A result is not the expected one, or a program failed."""


def say(text: str) -> None:
    print(text, flush=True)


def step(letter: str, title: str) -> None:
    say(f"\n{letter}. {title}")


def does(what: str) -> None:
    say(f"   does     {what}")


def notes(what: str) -> None:
    say(f"            {what}")


def expect(expected: object, actual: object, what: str = "") -> None:
    """Prints both values; raises DemoFailed if they differ."""
    label = f"{what}: " if what else ""
    say(f"   expects  {label}{shown(expected)}")
    say(f"   gets     {label}{shown(actual)}   {'ok' if actual == expected else '<-- UNEXPECTED'}")
    if actual != expected:
        raise DemoFailed(f"{label}expected {shown(expected)}, got {shown(actual)}")


def shown(value: object) -> str:
    """Formats a value as JSON, and a string unchanged."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def expect_that(condition: bool, expected: str, actual: str) -> None:
    """Like `expect`, for conditions other than equality."""
    say(f"   expects  {expected}")
    say(f"   gets     {actual}   {'ok' if condition else '<-- UNEXPECTED'}")
    if not condition:
        raise DemoFailed(f"expected {expected}, got {actual}")


def wait_until(what: str, condition: Callable[[], object], seconds: float, pause: float = 0.02):
    """Polls until the condition returns a true value, and returns that value; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise DemoFailed(f"{what}: not within {seconds:g} s")
        time.sleep(pause)
