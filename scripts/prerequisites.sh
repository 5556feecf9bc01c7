#!/usr/bin/env bash
# Names everything that must be on the machine and is not, with the command that brings it.
# All else the other scripts fetch themselves, into .tools/ of the checkout.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
packages=()
other=()

main() {
    debian cc build-essential
    debian curl curl
    debian openssl openssl
    python
    rust
    [ $((${#packages[@]} + ${#other[@]})) -gt 0 ] || return 0

    echo "Something is missing on this machine. Please run:" >&2
    [ ${#packages[@]} -eq 0 ] || echo "    apt-get install -y ${packages[*]}" >&2
    [ ${#other[@]} -eq 0 ] || printf '    %s\n' "${other[@]}" >&2
    exit 1
}

# debian COMMAND PACKAGE
debian() {
    command -v "$1" >/dev/null || packages+=("$2")
}

python() {
    local python
    if ! python=$("$here/find-python.sh"); then
        packages+=(python3 python3-venv)
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian keeps this part of Python in a package of its own.
        packages+=(python3-venv)
    fi
}

rust() {
    if ! command -v cargo >/dev/null; then
        other+=("curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y")
        return
    fi
    cargo fmt --version >/dev/null 2>&1 || other+=("rustup component add rustfmt")
    cargo clippy --version >/dev/null 2>&1 || other+=("rustup component add clippy")
}

main
