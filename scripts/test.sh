#!/usr/bin/env bash
# Runs every test of the workspace, and then those that need a control plane once more, on the engines of a fleet:
# PostgreSQL and Redis instead of what is embedded. Ends with one line, `N passed, N failed`, that sums up all of them.
# Exits with 0 only if some ran and none failed.
set -euo pipefail

cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# Suites that bring their engines themselves, so that a second time would tell nothing new; what the programs of the
# client print, to which the engine of the server is nothing; and webhooks_alone, which measures the machine.
ONCE='audit|fleet|histories|idempotency|moving|redis|single_use|webhook_replicas|client.*|doctor|description|contract|webhooks_alone'

main() {
    local passed failed all_passed=0 all_failed=0 good=true engines
    # Without colours, which would hide the lines that are counted.
    export CARGO_TERM_COLOR=never
    for engines in embedded fleet; do
        run "$engines" || good=false
        read -r passed failed < <(sum_up)
        $good || [ "$failed" -gt 0 ] || echo "cargo test failed, though no test did: see above"
        [ "$passed" -gt 0 ] || { echo "no test ran" && good=false; }
        echo "on the engines \`$engines\`: $passed passed, $failed failed"
        all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed))
    done
    echo "$all_passed passed, $all_failed failed"
    $good && [ "$all_failed" -eq 0 ]
}

# run ENGINES: the tests, on these engines.
run() {
    local suites=()
    [ "$1" = embedded ] || mapfile -t suites < <(suites | sed 's/^/--test=/')
    # --no-fail-fast: one failure must not hide what the test binaries after it say.
    TEST_ENGINES=$1 cargo test --workspace --no-fail-fast "${suites[@]}" 2>&1 | tee "$output"
}

# The suites that start a control plane, by name, but for those that have their own engines.
suites() {
    grep -rlE '(ControlPlane|SteppedPlane|Production|World)::start|App::bind' tests/tests |
        sed -E 's,^tests/tests/([^/.]+).*,\1,' | sort -u | grep -vxE "$ONCE"
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
