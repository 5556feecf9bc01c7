"""Child processes: each with a log of its own, and none that outlives us."""

import os
import shutil
import subprocess
from pathlib import Path

from console import Failed, say

# How long a server may take to stop when asked before it is killed.
STOP_SECONDS = 5
TAIL_LINES = 25


class Processes:
    """All that were started, in that order; they are stopped in the other."""

    def __init__(self, logs: Path):
        logs.mkdir(parents=True)
        self.logs = logs
        self.running: dict[str, subprocess.Popen] = {}

    def start(self, name: str, command: list[str], settings: dict[str, str]) -> None:
        """Starts `command`; `settings` are added to the environment."""
        with open(self.logs / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                dies_with_us(command),
                env=clean_environment() | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Out of reach of the terminal's Ctrl-C: we stop them ourselves, in order.
                start_new_session=True,
            )

    def must_run(self, name: str) -> None:
        """Fails if it has ended: nobody should wait for what will never answer."""
        code = self.running[name].poll()
        if code is not None:
            raise Failed(f"{name} ended by itself with code {code}")

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        for name in reversed(list(self.running)):
            process = self.running.pop(name)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"{name} did not stop within {STOP_SECONDS} s and was killed")
                process.kill()
                process.wait()

    def tails(self) -> str:
        """The end of every log."""
        parts = []
        for log in sorted(self.logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            parts.append(f"--- the last lines of {log}\n" + "\n".join(lines))
        return "\n".join(parts) + "\n"


def clean_environment() -> dict[str, str]:
    """Ours without COUNTERSIGN_*: settings of another deployment must not reach these servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}


def dies_with_us(command: list[str]) -> list[str]:
    """Has the kernel end the child should we be killed before we can; `setpriv` is part of util-linux."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else command
