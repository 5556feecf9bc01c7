#!/usr/bin/env bash
# Runs every test of the workspace and ends with one line, `N passed, N failed`, that sums up all of them.
# Exits with 0 only if some ran and none failed.
set -euo pipefail

cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT

main() {
    local status=0 passed failed
    # Without colours, which would hide the lines that are counted.
    export CARGO_TERM_COLOR=never
    # --no-fail-fast: one failure must not hide what the test binaries after it say.
    cargo test --workspace --no-fail-fast 2>&1 | tee "$output" || status=$?
    read -r passed failed < <(sum_up)
    [ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || echo "cargo test failed, though no test did: see above"
    [ "$passed" -gt 0 ] || echo "no test ran"
    echo "$passed passed, $failed failed"
    [ "$status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# A binary that was started and gave no result has crashed: that is a failed test too.
sum_up() {
    awk '
        /^ +(Running |Doc-tests )/ { started++ }
        /^test result: /           { ended++; passed += $4; failed += $6 }
        END                        { print passed + 0, failed + started - ended }
    ' "$output"
}

main
