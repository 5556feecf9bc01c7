#!/usr/bin/env bash
# Runs all tests of the workspace with SQLite and in-process counters. After that, runs the test modules that
# tests/suites.txt marks `both` again with two replicas on PostgreSQL and Redis. The last line, `N passed, N failed`,
# counts the tests of both runs. Exits with 0 only if both runs executed tests and no test failed.
set -euo pipefail

cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT

main() {
    # Many tests wait for processes, so twice as many as processors run at the same time.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
    local passed failed all_passed=0 all_failed=0 succeeded=true engines
    # Without colours, because the colour codes would prevent count_results from matching lines.
    export CARGO_TERM_COLOR=never
    for engines in embedded fleet; do
        "run_$engines" 2>&1 | tee "$output" || succeeded=false
        read -r passed failed < <(count_results)
        $succeeded || [ "$failed" -gt 0 ] || echo "cargo test failed, although no test failed: see the output above"
        [ "$passed" -gt 0 ] || { echo "no test was run" && succeeded=false; }
        echo "with TEST_ENGINES=$engines: $passed passed, $failed failed"
        all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed))
    done
    echo "$all_passed passed, $all_failed failed"
    $succeeded && [ "$all_failed" -eq 0 ]
}

# With --no-fail-fast, cargo runs the other test binaries after a failure.
run_embedded() {
    TEST_ENGINES=embedded cargo test --workspace --no-fail-fast
}

# Runs cargo once for each test binary, because each binary needs other filters.
run_fleet() {
    local suite modules succeeded=true
    for suite in $(awk '!/^#/ && $3 == "both" { print $1 }' tests/suites.txt | sort -u); do
        mapfile -t modules < <(awk -v suite="$suite" '$1 == suite && $3 == "both" { print $2 "::" }' tests/suites.txt)
        TEST_ENGINES=fleet cargo test --workspace --no-fail-fast --test "$suite" -- "${modules[@]}" || succeeded=false
    done
    $succeeded
}

# Prints the numbers of passed and failed tests. A test binary without a result has crashed, which counts as a failed test.
count_results() {
    awk '
        /^ +(Running |Doc-tests )/ { started++ }
        /^test result: /           { ended++; passed += $4; failed += $6 }
        END                        { print passed + 0, failed + started - ended }
    ' "$output"
}

main
