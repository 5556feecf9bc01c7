"""Runs the commands of docs/run/kubernetes.md as a reader does, in one shell: variables and files stay from block to block."""

import shutil
import subprocess
from pathlib import Path

import page
import yaml
from render import REPOSITORY, ChartError

SECONDS = 600


class Shell:
    """A shell in a folder that has the charts, as a checkout does."""

    def __init__(self, folder: Path):
        self.folder, self.state, self.output = folder / "checkout", folder / "variables", folder / "output"
        self.folder.mkdir()
        # The command line keeps its profile in the home directory.
        self.state.write_text(f"export HOME={self.folder}\n")
        for name in ("charts", "examples"):
            shutil.copytree(REPOSITORY / name, self.folder / name)
        self.background: list[subprocess.Popen] = []
        self.done: set[page.Block] = set()

    def follow(self, title: str, part: str = "", values: str = "values.yaml", path: Path = page.PAGE) -> str:
        """Runs the commands below a heading of a page, or the block that contains `part`. Writes values to a file."""
        chosen = [it for it in page.all_blocks(path) if it.title == title and part in it.text]
        if not chosen:
            raise ChartError(f"{path}: no block below {title!r} contains {part!r}")
        output = ""
        for block in chosen:
            self.done.add(block)
            if block.kind == "yaml":
                (self.folder / values).write_text(block.text)
            elif block.kind == "sh,background":
                self.start(block.text)
            elif block.kind in ("sh", "sh,ignore"):
                output += self.run(block.text)
        return output

    def run(self, commands: str) -> str:
        """Runs commands, each of which must succeed, and returns what they print."""
        status, output = self.attempt(commands)
        if status != 0:
            raise ChartError(f"failed with {status}:\n{commands}\n---- its output\n{output}")
        return output

    def attempt(self, commands: str, name: str = "output") -> tuple[int, str]:
        """Runs commands that may fail. Commands at the same time need names of their own, and keep no variables."""
        output = self.output.with_name(name)
        keep = f"export -p >{self.state}.new\nmv {self.state}.new {self.state}" if name == "output" else ""
        # A command that runs on in the background keeps this file, and not a pipe whose end we would wait for.
        with open(output, "wb") as file:
            script = f"set -euo pipefail\n. {self.state}\nset -a\n{commands}\nset +a\n{keep}\n"
            status = subprocess.run(["bash", "-c", script], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file,
                                    stderr=subprocess.STDOUT, timeout=SECONDS, check=False).returncode
        return status, output.read_text(errors="replace")

    def apply(self, *objects: dict) -> None:
        """Gives the cluster objects of our own."""
        (self.folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
        self.run("kubectl apply --filename=objects.yaml")

    def start(self, commands: str) -> None:
        """Runs commands in the background until this program ends, and waits until they print their first line."""
        command = ["bash", "-c", f". {self.state}\n{commands}"]
        process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        if not process.stdout.readline():
            raise ChartError(f"ended with {process.wait()}:\n{commands}")
        self.background.append(process)

    def left_out(self) -> list[str]:
        """The commands of the page that did not run, although nothing on the page says so."""
        commands = [it for it in page.all_blocks() if it.kind in ("sh", "sh,background")]
        return [f"{it.title}: {it.text.splitlines()[0]}" for it in commands if it not in self.done]
