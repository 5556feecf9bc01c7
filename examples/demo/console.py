"""Prints the steps of the demo, and compares expected with actual results."""

import json
import time
from typing import Callable


class DemoFailed(Exception):
    """A result differs from the expected result, or a program failed."""


def print_line(text: str) -> None:
    print(text, flush=True)


def print_step(letter: str, title: str) -> None:
    print_line(f"\n{letter}. {title}")


def print_action(action: str) -> None:
    print_line(f"   does     {action}")


def print_note(note: str) -> None:
    print_line(f"            {note}")


def expect(expected: object, actual: object, name: str = "") -> None:
    """Prints both values. Raises DemoFailed if they differ."""
    label = f"{name}: " if name else ""
    print_line(f"   expects  {label}{format_value(expected)}")
    print_line(f"   gets     {label}{format_value(actual)}   {'ok' if actual == expected else '<-- UNEXPECTED'}")
    if actual != expected:
        raise DemoFailed(f"{label}expected {format_value(expected)}, got {format_value(actual)}")


def format_value(value: object) -> str:
    """Formats a value as JSON. Returns a string unchanged."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def expect_condition(condition: bool, expected: str, actual: str) -> None:
    """Like `expect`, for conditions other than equality."""
    print_line(f"   expects  {expected}")
    print_line(f"   gets     {actual}   {'ok' if condition else '<-- UNEXPECTED'}")
    if not condition:
        raise DemoFailed(f"expected {expected}, got {actual}")


def wait_until(description: str, condition: Callable[[], object], seconds: float, pause: float = 0.02):
    """Polls until the condition returns a true value, and returns that value. Raises DemoFailed after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise DemoFailed(f"{description}: not within {seconds:g} s")
        time.sleep(pause)
