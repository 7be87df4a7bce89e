#!/usr/bin/env bash
# Builds a release: archives, packages, bills of materials, provenance, checksums and a signature.
#
#     [MINISIGN_KEY=FILE] scripts/release.sh [--all | --arch ARCH] [--twice] [--packages] DIR
#
# By default the script builds archives for the architecture of this machine. --all, as root, builds
# archives and packages for all of architectures.txt and one image for all, and in the end names the
# architectures that it could not build.
# --packages also writes a .deb and a .rpm. --twice builds everything again, as another user and from a
# copy of the source in another directory, and compares the executables, archives and packages.
#
# The executables are static and contain the list of their dependencies, which `cargo audit bin`,
# trivy and syft read. The same source and compiler produce the same bytes on every machine: Rust's
# own linker and musl make the executables, except for the targets with glibc.
#
# Needs Rust; a build takes some minutes per architecture. Installs what else it needs.

set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    local architectures=() twice=no packages=() image=no directory=
    while (($# > 0)); do
        case $1 in
            --all)
                mapfile -t architectures < <(all_architectures)
                packages=(--packages)
                image=yes
                ;;
            --arch) architectures=("${2:?}") && shift ;;
            --twice) twice=yes ;;
            --packages) packages=(--packages) ;;
            -*) die "unknown option $1" ;;
            *) directory=$1 ;;
        esac
        shift
    done
    [[ -n $directory ]] || die "where to? scripts/release.sh [--all | --arch ARCH] [--twice] [--packages] DIR"
    ((${#architectures[@]} > 0)) || architectures=("$(architecture)")
    directory=$(absolute "$directory")
    [[ $directory/ != "$(realpath .)"/* ]] || die "$directory is in the checkout, which it would change"
    [[ -z ${MINISIGN_KEY:-} ]] || MINISIGN_KEY=$(absolute "$MINISIGN_KEY")
    key_is_readable
    need_rust
    need readelf binutils
    need_subcommand auditable
    mkdir -p "$directory"
    [[ -z $(ls "$directory") ]] || die "$directory is not empty"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    local started summary=() missing=() arch
    started=$(date --utc +%FT%TZ)
    for arch in "${architectures[@]}"; do
        one_architecture
        rm -rf "${scratch:?}/$arch"
    done
    ((${#summary[@]} > 0)) || die "NOT BUILT: ${missing[*]}"
    [[ $image == no ]] || scripts/cluster-image.sh "$directory"
    scripts/provenance.sh "$started" "$directory"
    scripts/sign.sh "$directory"
    say "in $directory"
    (cd "$directory" && stat --format '%10s %n' -- * | grep -v '\.sha')
    printf '%s\n' "${summary[@]}"
    ((${#missing[@]} == 0)) || die "NOT BUILT: ${missing[*]}"
}

all_architectures() {
    sed '/^#/d; s/ .*//' scripts/architectures.txt | uniq
}

# choose_target ARCH: sets `target`, and `linker` to the linker of the target.
choose_target() {
    local arch prefix debian
    while read -r arch target prefix debian; do
        [[ $arch == "$1" ]] || continue
        add_target "$target" || continue
        linker=${prefix:+$prefix-gcc}
        [[ -z $prefix ]] ||
            (need "/usr/$prefix/lib/libc.a" "gcc-$prefix" "libc6-dev-$debian-cross") || continue
        return 0
    done <scripts/architectures.txt
    return 1
}

# one_architecture: builds and packs for `arch`, or adds the reason why not to `missing`.
one_architecture() {
    if ! choose_target "$arch"; then
        missing+=("$arch (its targets or their libraries cannot be installed here)")
        return
    fi
    say "building for $arch: $target"
    local begin=$SECONDS built=$scratch/$arch/$target/release
    if ! build "$PWD" "$scratch/$arch"; then
        missing+=("$arch ($target does not build)")
        return
    fi
    look_inside "$built"
    summary+=("$arch: $target in $((SECONDS - begin)) s")
    scripts/package.sh "${packages[@]}" --arch "$arch" "$built" "$directory"
    [[ $twice == no ]] || build_again "$built"
    scripts/sbom.sh "$target" "$built" "$directory/cni-plugins-linux-$arch-v$(version).cdx.json"
}

# build SOURCE TARGET [COMMAND...]: builds by cargo, which COMMAND runs. Keeps paths of this machine, of
# the source, of generated code and of the compiler, out of the executables.
build() {
    local flags
    flags=$(printf "'--remap-path-prefix=%s'," \
        "$1=/source" "$2=/target" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$(rustc --print sysroot)=/rust")
    flags+="'-Ctarget-feature=+crt-static'"
    [[ -n $linker ]] || flags+=",'-Clink-self-contained=yes'"
    # cargo prefers flags of the environment to those of --config, or adds them.
    (cd "$1" && unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS "${!CARGO_BUILD_@}" "${!CARGO_PROFILE_@}" "${!CARGO_TARGET_@}" &&
        SOURCE_DATE_EPOCH=0 CARGO_TARGET_DIR=$2 CARGO_INCREMENTAL=0 \
        "${@:3}" cargo auditable build --release --locked --bins --target "$target" \
        --config "target.$target.linker='${linker:-rust-lld}'" \
        --config "target.$target.rustflags=[$flags]")
}

look_inside() {
    local executable
    for executable in "${EXECUTABLES[@]}" "$AGENT"; do
        readelf --section-headers --wide "$1/$executable" | grep -qF .dep-v0 ||
            die "$executable does not list what it is made of"
        ! readelf --program-headers --wide "$1/$executable" | grep -qF INTERP ||
            die "$executable is not static"
        ! grep -qaF -e "$PWD" -e "$HOME/" -e "$scratch" "$1/$executable" ||
            die "$executable names a directory of this machine"
    done
}

# build_again EXECUTABLES: builds, packs and compares.
build_again() {
    say "building again, as another user and elsewhere"
    local other=$scratch/of/another/user
    # The user of a user namespace reads the files of the current user, and writes files of its own.
    local as_other=(unshare --user --map-user=1234 --map-group=1234)
    copy_source "$other/depth"
    (
        umask 077
        export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} CARGO_HOME=$other/cargo HOME=$other USER=other
        build "$other/depth" "$scratch/again" "${as_other[@]}"
    )
    local file files again=$scratch/again/$target/release
    "${as_other[@]}" scripts/package.sh "${packages[@]}" --arch "$arch" "$again" "$other/files"
    files=("$other"/files/*)
    for file in "${EXECUTABLES[@]}" "$AGENT"; do
        cmp "$1/$file" "$again/$file" || die "$file has other bytes when it is built elsewhere"
    done
    for file in "${files[@]}"; do
        cmp "$directory/${file##*/}" "$file" || die "${file##*/} has other bytes when it is packed again"
    done
    say "the same bytes: $((${#EXECUTABLES[@]} + 1)) executables, ${#files[@]} archives and packages"
    rm -rf "$scratch/of" "$scratch/again"
}

main "$@"
