#!/usr/bin/env bash
# Checks the Helm charts with all test values, and runs their pods without a cluster.
set -euo pipefail

cd "$(dirname "$0")/.."
python=.tools/venv/bin/python

main() {
    check_readmes
    .tools/bin/helm-unittest --strict charts/countersign charts/countersign-ext-authz 2> >(grep -v 'symbolic link' >&2)
    "$python" -B tests/charts/validate.py
    "$python" -B tests/charts/installation.py
    "$python" -B tests/charts/upgrade.py
}

# Checks that the README of each chart is what helm-docs makes of values.yaml, and that each value has a description.
check_readmes() {
    local chart
    for chart in charts/*/; do
        .tools/bin/helm-docs --dry-run --log-level warning --sort-values-order file --chart-search-root "$chart" |
            diff - "$chart/README.md" ||
            fail "$chart/README.md differs from values.yaml; run: .tools/bin/helm-docs --sort-values-order file --chart-search-root charts"
        ! grep -E '\|  \|$' "$chart/README.md" || fail "these values of $chart have no description (a comment that begins with \`# -- \`)"
    done
    echo "the READMEs of the charts agree with their values"
}

fail() {
    echo "charts.sh: $*" >&2
    exit 1
}

main
