"""What the walk prints, and the one place where an expectation is compared with what came."""

import json
import time
from typing import Callable


class Failed(Exception):
    """What came is not what was expected."""


def say(text: str) -> None:
    print(text, flush=True)


def step(letter: str, title: str) -> None:
    say(f"\n{letter}. {title}")


def does(what: str) -> None:
    say(f"   does     {what}")


def notes(what: str) -> None:
    say(f"            {what}")


def expect(expected: object, came: object, what: str = "") -> None:
    """Prints both; raises if they differ."""
    label = f"{what}: " if what else ""
    say(f"   expects  {label}{shown(expected)}")
    say(f"   came     {label}{shown(came)}   {'ok' if came == expected else '<-- NOT AS EXPECTED'}")
    if came != expected:
        raise Failed(f"{label}expected {shown(expected)}, came {shown(came)}")


def shown(value: object) -> str:
    """As JSON, so that the two lines can be compared by eye; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def expect_that(condition: bool, expected: str, came: str) -> None:
    """Like `expect`, for what is no equality."""
    say(f"   expects  {expected}")
    say(f"   came     {came}   {'ok' if condition else '<-- NOT AS EXPECTED'}")
    if not condition:
        raise Failed(f"expected {expected}, came {came}")


def wait_until(what: str, condition: Callable[[], object], seconds: float, pause: float = 0.02):
    """Asks again and again until the answer is true, and returns it; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds:g} s")
        time.sleep(pause)
