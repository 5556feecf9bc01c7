"""Starts and stops child processes. Each process has its own log file, and stops with the demo."""

import os
import shutil
import subprocess
from pathlib import Path

from console import DemoFailed, print_line

# The time that a server has to stop before it is killed.
STOP_SECONDS = 5
LAST_LINES = 25


class Processes:
    """The running processes. They are stopped in reverse order of their start."""

    def __init__(self, logs: Path):
        logs.mkdir(parents=True)
        self.logs = logs
        self.running: dict[str, subprocess.Popen] = {}

    def start(self, name: str, command: list[str], settings: dict[str, str]) -> None:
        """Starts `command` with `settings` as additional environment variables."""
        with open(self.logs / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                with_parent_death_signal(command),
                env=clean_environment() | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # The servers run in a new session, so that Ctrl-C in the terminal does not reach them. The demo stops
                # the servers in order.
                start_new_session=True,
            )

    def check_running(self, name: str) -> None:
        """Raises DemoFailed if the process has exited."""
        code = self.running[name].poll()
        if code is not None:
            raise DemoFailed(f"{name} exited with code {code}")

    def kill(self, name: str) -> None:
        """Kills the process with SIGKILL."""
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
                print_line(f"{name} did not stop within {STOP_SECONDS} s and was killed")
                process.kill()
                process.wait()

    def last_log_lines(self) -> str:
        """Returns the last lines of every log file."""
        parts = []
        for log in sorted(self.logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            parts.append(f"--- last lines of {log}\n" + "\n".join(lines))
        return "\n".join(parts) + "\n"


def clean_environment() -> dict[str, str]:
    """Returns the environment without COUNTERSIGN_* variables, which may be for another deployment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}


def with_parent_death_signal(command: list[str]) -> list[str]:
    """Returns a command that the kernel kills if the demo is killed. `setpriv` is part of util-linux."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else command
