#!/usr/bin/env bash
# Prints a Python that is new enough (Envoy's wheel asks for 3.10); exits with 1 if there is none.
set -euo pipefail

# /usr/bin/python3 last: a version manager may put an old one, or none, before Debian's.
for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
    # The interpreter itself, not a version manager's shim, which answers differently in other folders.
    if "$candidate" -c 'import sys; print(sys.executable) if sys.version_info >= (3, 10) else sys.exit(1)' 2>/dev/null; then
        exit 0
    fi
done
exit 1
