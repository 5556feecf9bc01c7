#!/usr/bin/env bash
# Lists required programs that are not installed, with the command that installs them.
# The other scripts fetch everything else into .tools/ of the checkout.
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

    echo "Required programs are missing. Run:" >&2
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
        # Debian packages this part of Python separately.
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
