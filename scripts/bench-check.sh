#!/usr/bin/env bash
# Runs every part of the benchmarks once, for a short time, with the programs of the debug build, and writes a report of the figures
# into a folder. Fails if a part panics or a figure is missing. The figures mean nothing: they show only that the benchmarks work.
#
# Usage: bench-check.sh FOLDER
set -euo pipefail

cd "$(dirname "$0")/.."
folder="$1" examples=target/debug/examples

main() {
    export BENCH_CHECK=1
    mkdir -p "$folder"
    rm -f "$folder/report.json"
    run bench "$folder/report.json"
    .tools/venv/bin/python -B scripts/bench-report.py "$folder" --complete
    PROPAGATION_REVOCATIONS=5 run propagation 1 10
    # 4,000 expired logins, 100 changed agents and 100 holders of a role.
    run backlog 4000 100 100
    echo "every part of the benchmarks works ($SECONDS s)"
}

# run EXAMPLE ARGUMENTS...: shows the output only if the example fails.
run() {
    local log="$folder/$1.log" started=$SECONDS
    "$examples/$1" "${@:2}" >"$log" 2>&1 || { cat "$log" && echo "the example $1 failed" && exit 1; } >&2
    echo "$1: $((SECONDS - started)) s"
}

main
