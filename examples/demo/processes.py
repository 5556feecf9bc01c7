"""Child processes. Each has its own log file, and none outlives the demo."""

import os
import shutil
import subprocess
from pathlib import Path

from console import DemoFailed, say

# A server that has not stopped after this time is killed.
STOP_SECONDS = 5
TAIL_LINES = 25


class Processes:
    """The started processes. They are stopped in reverse order."""

    def __init__(self, logs: Path):
        logs.mkdir(parents=True)
        self.logs = logs
        self.running: dict[str, subprocess.Popen] = {}

    def start(self, name: str, command: list[str], settings: dict[str, str]) -> None:
        """Starts `command`; `settings` are added to the environment."""
        with open(self.logs / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                killed_with_parent(command),
                env=clean_environment() | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must not reach the servers: the demo stops them in order.
                start_new_session=True,
            )

    def must_run(self, name: str) -> None:
        """Fails if the process has exited."""
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
                say(f"{name} did not stop within {STOP_SECONDS} s and was killed")
                process.kill()
                process.wait()

    def tails(self) -> str:
        """Returns the last lines of every log."""
        parts = []
        for log in sorted(self.logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            parts.append(f"--- last lines of {log}\n" + "\n".join(lines))
        return "\n".join(parts) + "\n"


def clean_environment() -> dict[str, str]:
    """Returns the environment without COUNTERSIGN_* variables, which may belong to another deployment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}


def killed_with_parent(command: list[str]) -> list[str]:
    """Makes the kernel kill the child if the demo is killed. `setpriv` is part of util-linux."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else command
