"""Runs the whole of Countersign on this machine, in eight steps. Start it with `make demo`.

Starts a control plane, a sidecar, Envoy and an upstream service on free ports, prints what each step does,
expects and gets, and stops at the first difference. The agent is a shell script that uses openssl and curl, and in the
last step the `countersign` command line.

    DEMO_KEEP=1     keeps everything running after the steps, until Ctrl-C
    ENVOY_BIN=…     uses this Envoy instead of the one under .tools
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
    # Set explicitly, because a shell starts background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    folder = make_folder()
    processes = Processes(folder / "logs")
    keep_folder = False
    try:
        began = time.monotonic()
        stack = Stack(folder, processes)
        stack.start()
        for step in steps.ALL:
            step(stack)
        console.say(f"\nAll {len(steps.ALL)} steps gave the expected results, in {time.monotonic() - began:.1f} s.")
        if os.environ.get("DEMO_KEEP") == "1":
            keep_running(stack)
        return 0
    except KeyboardInterrupt:
        console.say("\ninterrupted")
        return 130
    except console.DemoFailed as failure:
        keep_folder = True
        console.say(f"\nFAILED: {failure}\n\n{processes.tails()}\nLogs and data are kept in {folder}")
        return 1
    except Exception:
        keep_folder = True
        console.say(f"\nFAILED:\n\n{processes.tails()}\nLogs and data are kept in {folder}")
        raise
    finally:
        # A second Ctrl-C must not leave a server running.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.stop_all()
        if not keep_folder:
            shutil.rmtree(folder, ignore_errors=True)


def make_folder() -> Path:
    """Makes a temporary folder, in /tmp if TMPDIR is too long: the path of a Unix socket has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="countersign-demo-"))
    if len(bytes(folder)) > 80:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="countersign-demo-", dir="/tmp"))
    return folder


def keep_running(stack: Stack) -> None:
    console.say(
        f"""
DEMO_KEEP=1: everything keeps running until Ctrl-C.

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
        console.say("\nstopping")


if __name__ == "__main__":
    sys.exit(main())
