#!/usr/bin/env bash
# Builds the programs of a release, optimized, into target/release. Each program is stripped, and the file NAME.debug beside it has
# the line tables: gdb, perf, addr2line and the backtrace of a panic find this file there.
set -euo pipefail

project="$(cd "$(dirname "$0")/.." && pwd)"
target="${CARGO_TARGET_DIR:-$project/target}"

main() {
    local name
    # The same features and lock file as in every other build.
    (cd "$project" && cargo build --release --locked --workspace --bins)
    for name in countersign countersign-control-plane countersign-ext-authz; do
        separate_debug_file "$target/release/$name"
    done
    ls -l "$target"/release/countersign{,-control-plane,-ext-authz}{,.debug}
}

# Cargo can strip a program (`strip`), or pack its debug information into a file (`split-debuginfo`). But a packed file is useless if
# the program is stripped, because a part of the debug information is in the program. The names of functions stay in the program, for
# the backtrace of a panic: they are about a fifth of the program.
separate_debug_file() {
    local program="$1"
    # Cargo does not write a program again that has not changed since it was stripped.
    if ! readelf --section-headers --wide "$program" | grep gnu_debuglink >/dev/null; then
        objcopy --only-keep-debug "$program" "$program.debug"
        strip --strip-debug "$program"
        objcopy --add-gnu-debuglink="$program.debug" "$program"
    fi
}

main
