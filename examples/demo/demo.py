"""The whole of Countersign on this machine, walked through in eight steps. Run it with `make demo`.

Starts a control plane, a sidecar, Envoy and an upstream service on free ports, shows what each step does,
what it expects and what came, and stops at the first difference. Python is only the stage hand here: the
agent is a shell script of openssl and curl, and in the last step the command line `countersign`.

    DEMO_KEEP=1     keeps everything up after the walk, until Ctrl-C
    ENVOY_BIN=…     takes this Envoy instead of the one under .tools
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
    # Said, for a shell starts what it puts into the background deaf to Ctrl-C.
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
        console.say(f"\nAll {len(steps.ALL)} steps came as expected, in {time.monotonic() - began:.1f} s.")
        if os.environ.get("DEMO_KEEP") == "1":
            stay_up(stack)
        return 0
    except KeyboardInterrupt:
        console.say("\ninterrupted")
        return 130
    except console.Failed as failure:
        keep_folder = True
        console.say(f"\nFAILED: {failure}\n\n{processes.tails()}\nEverything is kept in {folder}")
        return 1
    except Exception:
        keep_folder = True
        console.say(f"\nFAILED:\n\n{processes.tails()}\nEverything is kept in {folder}")
        raise
    finally:
        # A second Ctrl-C must not leave a server behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.stop_all()
        if not keep_folder:
            shutil.rmtree(folder, ignore_errors=True)


def make_folder() -> Path:
    """A folder of our own; for a socket's path may have 107 bytes at most, /tmp if TMPDIR is too deep."""
    folder = Path(tempfile.mkdtemp(prefix="countersign-demo-"))
    if len(bytes(folder)) > 80:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="countersign-demo-", dir="/tmp"))
    return folder


def stay_up(stack: Stack) -> None:
    console.say(
        f"""
DEMO_KEEP=1: everything stays up until Ctrl-C.

    the service, through Envoy   {stack.envoy_url}   (/, /admin, /open, /health)
    the identity API             {stack.dev['COUNTERSIGN_URL']}
    metrics, readiness           {stack.dev['COUNTERSIGN_ADMIN_URL']}/metrics   {stack.sidecar_admin_url}/metrics
    Envoy's own admin            {stack.envoy_admin_url}
    logs                         {stack.folder}/logs

In another terminal, in the folder of the checkout:

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
