#!/usr/bin/env bash
# Runs every test of the workspace on SQLite and in-process counters, then runs the modules that tests/suites.txt marks
# `both` again on PostgreSQL and Redis. Ends with one line, `N passed, N failed`, for both runs together.
# Exits with 0 only if tests ran and none failed.
set -euo pipefail

cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT

main() {
    local passed failed all_passed=0 all_failed=0 good=true engines
    # Colours would hide the lines that are counted.
    export CARGO_TERM_COLOR=never
    for engines in embedded fleet; do
        "run_$engines" 2>&1 | tee "$output" || good=false
        read -r passed failed < <(sum_up)
        $good || [ "$failed" -gt 0 ] || echo "cargo test failed, though no test did: see above"
        [ "$passed" -gt 0 ] || { echo "no test ran" && good=false; }
        echo "on the engines \`$engines\`: $passed passed, $failed failed"
        all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed))
    done
    echo "$all_passed passed, $all_failed failed"
    $good && [ "$all_failed" -eq 0 ]
}

# Without --no-fail-fast, the first failure would hide the test binaries after it.
run_embedded() {
    TEST_ENGINES=embedded cargo test --workspace --no-fail-fast
}

# One command for each binary, because the filters differ.
run_fleet() {
    local suite modules good=true
    for suite in $(awk '!/^#/ && $3 == "both" { print $1 }' tests/suites.txt | sort -u); do
        mapfile -t modules < <(awk -v suite="$suite" '$1 == suite && $3 == "both" { print $2 "::" }' tests/suites.txt)
        TEST_ENGINES=fleet cargo test --workspace --no-fail-fast --test "$suite" -- "${modules[@]}" || good=false
    done
    $good
}

# A binary that started and printed no result has crashed: that counts as a failed test.
sum_up() {
    awk '
        /^ +(Running |Doc-tests )/ { started++ }
        /^test result: /           { ended++; passed += $4; failed += $6 }
        END                        { print passed + 0, failed + started - ended }
    ' "$output"
}

main
