#!/usr/bin/env bash
# Assembles the contents of the container images. The Dockerfile calls this script, and so does `make image` without a
# container engine. It needs Debian or a derivative, because the shared libraries are described by their packages.
#
#   image.sh build            builds the programs, optimized and stripped, into target/release, as scripts/release.sh does
#   image.sh root NAME DIR    assembles the root file system of the image of the program NAME in DIR, which must not exist.
#                             BINARIES is the folder of the programs (target/release).
#   image.sh roots DIR        assembles the roots of all three images in DIR/control-plane, DIR/ext-authz and DIR/cli, which it replaces
#   image.sh images DIR       builds the images with buildah, and writes their root file systems to the same folders.
#                             BUILDER is the image of the build stage, if not the one in the Dockerfile. TAG is the version by default.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
project="$(dirname "$here")"
tools="$project/.tools/bin"
binaries="${BINARIES:-${CARGO_TARGET_DIR:-$project/target}/release}"
# The user of the image. The Helm charts run the images with the same number.
user=65532
declare -A programs=([control-plane]=countersign-control-plane [ext-authz]=countersign-ext-authz [cli]=countersign)
name='' crate='' dir='' libraries=() packages=()

main() {
    case "${1:-}" in
    build) "$here/release.sh" ;;
    root) assemble_root "${2:?the name of a program}" "${3:?a folder}" ;;
    roots) assemble_roots "${2:?a folder}" ;;
    images) build_images "${2:?a folder}" ;;
    *)
        sed -n '2,/^set -e/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
}

assemble_roots() {
    local target
    rm -rf "$1"
    for target in "${!programs[@]}"; do
        # A new process, because each root has its own variables.
        "$here/image.sh" root "${programs[$target]}" "$1/$target"
    done
}

# With the isolation chroot, buildah needs no rights that a container lacks.
build_images() {
    local target tag="${TAG:-$(sed -n 's/^version = "\(.*\)"$/\1/p' "$project/Cargo.toml" | head -1)}" arguments=()
    [ -z "${BUILDER:-}" ] || arguments+=(--build-arg "BUILDER=$BUILDER")
    arguments+=(--build-arg "VERSION=$tag" --build-arg "REVISION=$(git -C "$project" rev-parse HEAD 2>/dev/null || true)")
    arguments+=(--build-arg "CREATED=$(date -u +%Y-%m-%dT%H:%M:%SZ)")
    rm -rf "$1"
    for target in "${!programs[@]}"; do
        buildah bud --isolation chroot --layers "${arguments[@]}" --target "$target" --tag "countersign-$target:$tag" \
            --output "type=local,dest=$1/$target" "$project"
    done
    # buildah lets only its user enter the written folders.
    chmod 0755 "$1" "$1"/*
}

assemble_root() {
    name="$1" dir="$2"
    case "$name" in
    countersign) crate=client ;;
    countersign-control-plane) crate=control-plane ;;
    countersign-ext-authz) crate=ext-authz ;;
    *) fail "no image for $name" ;;
    esac
    [ -x "$binaries/$name" ] || fail "$binaries/$name is missing: run scripts/image.sh build"
    [ ! -e "$dir" ] || fail "$dir exists"
    umask 022
    mkdir -p "$dir"
    copy_program
    copy_libraries
    copy_system_files
    write_sbom
    copy_licences
    create_writable_folders
    echo "assembled $dir: $(du -sh "$dir" | cut -f 1), $(find "$dir" -type f | wc -l) files"
}

# The programs of a release are stripped. Programs of a debug build contain line tables, the largest part of the file.
copy_program() {
    install -D -m 0755 "$binaries/$name" "$dir/usr/local/bin/$name"
    strip --strip-debug "$dir/usr/local/bin/$name"
}

# Copies the dynamic loader and the libraries to the paths at which the loader searches for them.
copy_libraries() {
    local library package
    mapfile -t libraries < <(ldd "$binaries/$name" | grep -oE '/[^ ]+' | sort -u)
    [ ${#libraries[@]} -gt 0 ] || fail "$binaries/$name needs no shared libraries, which ldd should list"
    for library in "${libraries[@]}"; do
        install -D -m 0755 "$(realpath "$library")" "$dir$library"
        # dpkg may know the library by a path in /lib or in /usr/lib, so search for the name, and compare the files.
        package=$(dpkg-query --search "*/$(basename "$library")" | while read -r owner path; do
            if [ "$path" -ef "$library" ]; then echo "${owner%%:*}"; fi
        done | sort -u)
        [[ "$package" =~ ^[^[:space:]]+$ ]] || fail "$library must be in one package, and is in: ${package:-none}"
        packages+=("$package")
    done
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" ca-certificates | sort -u)
}

# The certificates are those of the package ca-certificates, and not those that the build machine trusts in addition.
copy_system_files() {
    local certificate
    mkdir -p "$dir/etc/ssl/certs" "$dir/var/lib/dpkg/status.d"
    for certificate in $(dpkg-query --listfiles ca-certificates | grep '^/usr/share/ca-certificates/.*\.crt$' | sort); do
        # The last line of a file may have no line end.
        sed -e '$a\' "$certificate"
    done >"$dir/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%s:%s:nonroot:/home/nonroot:/sbin/nologin\n' "$user" "$user" >"$dir/etc/passwd"
    printf 'root:x:0:\nnonroot:x:%s:\n' "$user" >"$dir/etc/group"
    echo 'hosts: files dns' >"$dir/etc/nsswitch.conf"
    cp /etc/os-release "$dir/etc/os-release"
    # Scanners for vulnerabilities read here which versions of the packages the image has.
    for package in "${packages[@]}"; do
        dpkg-query --status "$package" >"$dir/var/lib/dpkg/status.d/$package"
    done
}

copy_licences() {
    local package
    for package in "${packages[@]}"; do
        install -D -m 0644 "/usr/share/doc/$package/copyright" "$dir/usr/share/doc/$package/copyright"
    done
    install -D -m 0644 "$project/LICENSE" "$dir/usr/share/doc/$name/copyright"
    copy_crate_licences
}

# Writes the licences of the crates into one file. A text that several crates have is written once, below their names.
copy_crate_licences() {
    local crate_folder file sum
    declare -A names texts
    while read -r crate_folder; do
        for file in "$crate_folder"/{LICEN[CS]E,COPY,NOTICE,COPYRIGHT}*; do
            [ -f "$file" ] || continue
            sum=$(sha256sum <"$file")
            names[$sum]+="$(basename "$crate_folder")/$(basename "$file")"$'\n'
            texts[$sum]=$file
        done
    done < <(crate_folders)
    for sum in "${!texts[@]}"; do
        printf '%s\n%s\n\n' "$(sort <<<"${names[$sum]}" | grep .)" "$(cat "${texts[$sum]}")"
        printf -- '-%.0s' {1..80}
        echo
    done >"$dir/usr/share/doc/$name/crates"
}

# Prints the folders of the sources of the crates. The crates of this project have none in the registry.
crate_folders() {
    local compiled
    while read -r compiled; do
        ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$compiled" 2>/dev/null || true
    done < <(compiled_crates | tr ' ' '-')
}

# Writes the SBOM: the crates that are compiled into the program, and the Debian packages that it needs.
write_sbom() {
    local target="$dir/usr/local/share/sbom/$name.cdx.json"
    # cargo-cyclonedx writes a file for each program, next to the manifest of its crate.
    trap 'rm -f "$project"/*/*_bin.cdx.json' EXIT
    (cd "$project" && "$tools/cargo-cyclonedx" cyclonedx -qq --manifest-path "$crate/Cargo.toml" --format json --spec-version 1.5 \
        --describe binaries --no-build-deps)
    mkdir -p "$(dirname "$target")"
    jq --from-file "$here/image-sbom.jq" --arg project "$project" --rawfile crates <(compiled_crates) \
        --rawfile packages <(installed_packages) --arg sha256 "$(sha256sum "$dir/usr/local/bin/$name" | cut -d ' ' -f 1)" \
        "$project/$crate/${name}_bin.cdx.json" >"$target"
}

# Prints the crates that are compiled into the program, each as NAME VERSION. cargo-cyclonedx also lists the crates of macros, and
# optional dependencies that are disabled. With the whole workspace, cargo enables the same features as in the build.
compiled_crates() {
    (cd "$project" && cargo tree --locked --workspace --edges normal,no-proc-macro --prefix depth --no-dedupe --format ' {p}') |
        awk -v "root=countersign-$crate" '$1 == 0 { inside = ($2 == root) } inside && NF { print $2, substr($3, 2) }' | sort -u
}

# Prints the packages of the image, each as NAME VERSION ARCHITECTURE.
installed_packages() {
    dpkg-query --show --showformat '${Package} ${Version} ${Architecture}\n' "${packages[@]}"
}

# The working directory of the control plane, and the home directory of the command line. A new volume that is mounted there gets
# the owner and the mode of the folder. Without root, the folders belong to the user who assembles the image.
create_writable_folders() {
    local folder
    install -d -m 1777 "$dir/tmp"
    case "$name" in
    countersign) folder="$dir/home/nonroot" ;;
    countersign-control-plane) folder="$dir/data" ;;
    *) return ;;
    esac
    mkdir -p "$(dirname "$folder")"
    install -d -m 0700 "$folder"
    [ "$(id -u)" != 0 ] || chown "$user:$user" "$folder"
}

fail() {
    echo "image.sh: $*" >&2
    exit 1
}

main "$@"
