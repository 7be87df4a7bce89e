#!/usr/bin/env bash
# Builds the executables of a release. They are static and contain the list of their dependencies,
# which `cargo audit bin`, trivy and syft read. The same source and compiler produce the same bytes
# on every machine.
#
#     scripts/release.sh [--twice] [--packages] DIR
#
# DIR gets the archives of scripts/package.sh, with --packages a .deb and a .rpm, too, and what
# scripts/sign.sh adds. --twice builds the executables again from a copy of the source in another directory,
# and compares them.
#
# Needs Rust; a build takes some minutes. Installs cargo-auditable if it is missing.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    local twice=no packages=() directory=
    while (($# > 0)); do
        case $1 in
            --twice) twice=yes ;;
            --packages) packages=(--packages) ;;
            -*) die "unknown option $1" ;;
            *) directory=$1 ;;
        esac
        shift
    done
    [[ -n $directory ]] || die "where to? scripts/release.sh [--twice] [--packages] DIR"
    need_rust
    need readelf binutils
    cargo auditable --version >/dev/null 2>&1 || cargo install --locked cargo-auditable

    say "building"
    target=$(static_target)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    build "$PWD" "$scratch/target"
    local built=$scratch/target/$target/release
    look_inside "$built"
    [[ $twice == no ]] || build_again "$built"
    scripts/package.sh "${packages[@]}" "$built" "$directory"
    scripts/sign.sh "$directory"
    say "in $directory"
    cat "$directory/SHA256SUMS"
}

# build SOURCE TARGET: keeps paths of this machine, of the source and of the compiler, out of the
# executables.
build() {
    local remapped
    remapped=$(printf "'--remap-path-prefix=%s'," \
        "$1=/source" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$(rustc --print sysroot)=/rust")
    (cd "$1" && SOURCE_DATE_EPOCH=0 CARGO_TARGET_DIR=$2 CARGO_INCREMENTAL=0 \
        cargo auditable build --release --locked --bins --target "$target" \
        --config "target.$target.rustflags=[${remapped%,}]")
}

look_inside() {
    local executable
    for executable in "${EXECUTABLES[@]}" "$AGENT"; do
        readelf --section-headers --wide "$1/$executable" | grep -qF .dep-v0 ||
            die "$executable does not list what it is made of"
        ! grep -qaF -e "$PWD" -e "$HOME/" "$1/$executable" ||
            die "$executable names a directory of this machine"
    done
}

build_again() {
    say "building again, elsewhere"
    local elsewhere=$scratch/of/another/depth
    mkdir -p "$elsewhere"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$elsewhere"
    build "$elsewhere" "$scratch/again"
    local executable
    for executable in "${EXECUTABLES[@]}" "$AGENT"; do
        cmp "$1/$executable" "$scratch/again/$target/release/$executable" ||
            die "$executable has other bytes when it is built elsewhere"
    done
    say "the same bytes"
}

main "$@"
