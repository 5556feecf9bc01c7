"""Runs all parts of Countersign on this machine, in eight steps. `make demo` starts it.

The demo starts a control plane, a sidecar, Envoy and an upstream service on free ports. It prints what each step does,
the expected result and the actual result, and stops at the first difference. The agent is a shell script that uses
openssl and curl. The last step uses the `countersign` command line instead.

    DEMO_KEEP=1     keeps all servers running after the steps, until Ctrl-C
    ENVOY_BIN=PATH  uses this Envoy instead of the one in .tools
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import console
import steps
from processes import Processes
from stack import Stack


def main() -> int:
    # The handler of SIGINT is set explicitly, because background jobs of a shell ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    folder = create_folder()
    processes = Processes(folder / "logs")
    keep_folder = False
    try:
        started_at = time.monotonic()
        stack = Stack(folder, processes)
        stack.start()
        for step in steps.ALL:
            step(stack)
        seconds = time.monotonic() - started_at
        console.print_line(f"\nAll {len(steps.ALL)} steps gave the expected results, in {seconds:.1f} s.")
        if os.environ.get("DEMO_KEEP") == "1":
            keep_running(stack)
        return 0
    except KeyboardInterrupt:
        console.print_line("\ninterrupted")
        return 130
    except console.DemoFailed as failure:
        keep_folder = True
        console.print_line(f"\nFAILED: {failure}\n\n{processes.last_log_lines()}\nThe logs and the data are in {folder}")
        return 1
    except Exception:
        keep_folder = True
        console.print_line(f"\nFAILED:\n\n{processes.last_log_lines()}\nThe logs and the data are in {folder}")
        raise
    finally:
        # Signals are ignored while the servers stop, so that a second Ctrl-C leaves no server running.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.stop_all()
        if not keep_folder:
            shutil.rmtree(folder, ignore_errors=True)


def create_folder() -> Path:
    """Creates a temporary folder: in /tmp if TMPDIR is too long, since the path of a Unix socket has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="countersign-demo-"))
    if len(bytes(folder)) > 80:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="countersign-demo-", dir="/tmp"))
    return folder


def keep_running(stack: Stack) -> None:
    console.print_line(
        f"""
DEMO_KEEP=1: all servers keep running until Ctrl-C.

    the service, through Envoy   {stack.envoy_url}   (/, /admin, /open, /health)
    the identity API             {stack.dev['COUNTERSIGN_URL']}
    metrics, readiness           {stack.dev['COUNTERSIGN_ADMIN_URL']}/metrics   {stack.sidecar_admin_url}/metrics
    the admin port of Envoy      {stack.envoy_admin_url}
    logs                         {stack.folder}/logs

In another terminal, in the checkout:

    set -a; . {stack.dev_env}; set +a
    export AGENT_DIR={stack.agent_folder}
    examples/agent-openssl-curl/agent.sh call {stack.envoy_url}/
    curl --cacert "$COUNTERSIGN_CA" -H "Authorization: Bearer $COUNTERSIGN_SERVICE_KEY" \\
         "$COUNTERSIGN_URL/services/$COUNTERSIGN_SERVICE_ID/roles"
"""
    )
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print_line("\nstopping")


if __name__ == "__main__":
    sys.exit(main())
