#!/usr/bin/env bash
# Prints the path of a Python interpreter, version 3.10 or later. The Envoy wheel requires version 3.10. Exits with 1 if
# no such interpreter is installed.
set -euo pipefail

# /usr/bin/python3 is last, for machines on which a version manager puts an older Python first on the PATH.
for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
    # Print the path of the interpreter itself, because the shim of a version manager depends on the current folder.
    if "$candidate" -c 'import sys; print(sys.executable) if sys.version_info >= (3, 10) else sys.exit(1)' 2>/dev/null; then
        exit 0
    fi
done
exit 1
