#!/usr/bin/env bash
# Builds the executables of a release: static, with the list of all that they are made of inside
# (`cargo audit bin`, trivy and syft read it), and the same bytes wherever they are built from the same
# source by the same compiler.
#
#     scripts/release.sh [--twice] [--deb] DIR
#
# DIR gets the archives that scripts/package.sh packs, with --deb the Debian package as well, and their SHA256SUMS.
# With --twice the executables are built once more, from a copy of the source elsewhere, and compared.
#
# Needs Rust; takes some minutes a build. Installs cargo-auditable where it is missing.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    local twice=no deb=() directory=
    while (($# > 0)); do
        case $1 in
            --twice) twice=yes ;;
            --deb) deb=(--deb) ;;
            -*) die "unknown option $1" ;;
            *) directory=$1 ;;
        esac
        shift
    done
    [[ -n $directory ]] || die "where to? scripts/release.sh [--twice] [--deb] DIR"
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
    scripts/package.sh "${deb[@]}" "$built" "$directory"
    say "in $directory"
    cat "$directory/SHA256SUMS"
}

# build SOURCE TARGET: no path of this machine gets in, neither the source's nor the compiler's.
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
    for executable in "${EXECUTABLES[@]}"; do
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
    for executable in "${EXECUTABLES[@]}"; do
        cmp "$1/$executable" "$scratch/again/$target/release/$executable" ||
            die "$executable has other bytes when it is built elsewhere"
    done
    say "the same bytes"
}

main "$@"
