#!/usr/bin/env bash
# Lists required programs that are not installed, and the commands that install them. tools.sh fetches all other tools.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
packages=()
commands=()

main() {
    check_command cc build-essential
    check_command curl curl
    check_command openssl openssl
    check_python
    check_rust
    [ $((${#packages[@]} + ${#commands[@]})) -gt 0 ] || return 0

    echo "Required programs are missing. Run:" >&2
    [ ${#packages[@]} -eq 0 ] || echo "    apt-get install -y ${packages[*]}" >&2
    [ ${#commands[@]} -eq 0 ] || printf '    %s\n' "${commands[@]}" >&2
    exit 1
}

# check_command COMMAND PACKAGE: requires the Debian package if the command is not installed.
check_command() {
    command -v "$1" >/dev/null || packages+=("$2")
}

check_python() {
    local python
    if ! python=$("$here/find-python.sh"); then
        packages+=(python3 python3-venv)
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian has a separate package for the Python modules `venv` and `ensurepip`.
        packages+=(python3-venv)
    fi
}

check_rust() {
    if ! command -v cargo >/dev/null; then
        commands+=("curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y")
        return
    fi
    cargo fmt --version >/dev/null 2>&1 || commands+=("rustup component add rustfmt")
    cargo clippy --version >/dev/null 2>&1 || commands+=("rustup component add clippy")
}

main
