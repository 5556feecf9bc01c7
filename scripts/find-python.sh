#!/usr/bin/env bash
# Prints the path of a Python 3.10 or later, which the Envoy wheel requires. Exits with 1 if there is none.
set -euo pipefail

# /usr/bin/python3 is last: a version manager may put an older Python before the one of Debian.
for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
    # Print the interpreter itself: the shim of a version manager behaves differently in other folders.
    if "$candidate" -c 'import sys; print(sys.executable) if sys.version_info >= (3, 10) else sys.exit(1)' 2>/dev/null; then
        exit 0
    fi
done
exit 1
