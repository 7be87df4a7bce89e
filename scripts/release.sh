#!/usr/bin/env bash
# Builds a release: archives, packages, bills of materials, provenance, checksums and a signature.
#
#     [MINISIGN_KEY=FILE] scripts/release.sh [--all | --arch ARCH] [--twice] [--packages] DIR
#
# By default the script builds archives for the architecture of this machine. --all, as root, builds
# archives and packages for all of architectures.txt and one image for all, and in the end names the
# architectures that it could not build or not reproduce.
# --packages also writes a .deb and a .rpm. --twice builds the executables, archives and packages again,
# as another user, with another home and umask, and from a copy of the source in another directory, and
# compares them. It does not build the bills of materials and the image again.
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
    local architectures=() twice=no packages=() image=no directory='' options=()
    while (($# > 0)); do
        [[ $1 != -* ]] || options+=("$1")
        case $1 in
            --all)
                mapfile -t architectures < <(all_architectures)
                packages=(--packages)
                image=yes
                ;;
            --arch) architectures=("${2:?}") && options+=("$2") && shift ;;
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
    needed
    other_tag
    mkdir -p "$directory"
    [[ -z $(ls "$directory") ]] || die "$directory is not empty"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    local started targets=() summary=() missing=() arch
    started=$(date --utc +%FT%TZ)
    for arch in "${architectures[@]}"; do
        one_architecture
        rm -rf "${scratch:?}/$arch"
    done
    ((${#summary[@]} > 0)) || die "FAILED: ${missing[*]}"
    [[ $image == no ]] || scripts/cluster-image.sh "$directory"
    scripts/provenance.sh "$started" "$directory" "${options[*]}" "${targets[@]}"
    scripts/sign.sh "$directory"
    say "in $directory"
    (cd "$directory" && stat --format '%10s %n' -- * | grep -v '\.sha')
    printf '%s\n' "${summary[@]}"
    ((${#missing[@]} == 0)) || die "FAILED: ${missing[*]}"
}

# Fails before the first build, instead of after hours, if something is missing.
needed() {
    [[ $image == no ]] || ((EUID == 0)) || die "--all needs root, for the image"
    [[ $image == no ]] || need buildah buildah
    need_rust
    need readelf binutils
    need jq jq
    need_subcommand auditable "$CARGO_AUDITABLE"
    need_subcommand cyclonedx "$CARGO_CYCLONEDX"
    [[ ${#packages[@]} == 0 ]] || nfpm >/dev/null
}

# Warns if the commit has a tag of another version.
other_tag() {
    local tags
    tags=$(git tag --points-at HEAD 'v*')
    [[ -z $tags ]] || grep -qxF "v$(version)" <<<"$tags" ||
        say "WRONG TAG: the version is $(version), and the commit has the tag ${tags//$'\n'/ }"
}

all_architectures() {
    sed '/^#/d; s/ .*//' scripts/architectures.txt | uniq
}

# choose_target ARCH: sets `target`, and `linker` to the linker of a target with glibc.
choose_target() {
    local arch prefix debian
    while read -r arch target prefix debian; do
        [[ $arch == "$1" ]] || continue
        if ! add_target "$target" || ! (need_c_compiler "$prefix" "$debian"); then continue; fi
        linker=''
        [[ $target != *-gnu* ]] || linker=$prefix-gcc
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
    targets+=("$arch:$target:$linker")
    summary+=("$arch: $target in $((SECONDS - begin)) s")
    scripts/package.sh "${packages[@]}" --arch "$arch" "$built" "$directory"
    [[ $twice == no ]] || build_again "$built" || missing+=("$arch (not reproduced)")
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

# build_again EXECUTABLES: builds and packs in a copy of the source, which all architectures share, and
# compares. Fails if a file differs.
build_again() {
    say "building again, as another user and elsewhere"
    local other=$scratch/of/another/user
    # The user of a user namespace reads the files of the current user, and writes files of its own.
    local as_other=(unshare --user --map-user=1234 --map-group=1234)
    [[ -d $other/depth ]] || copy_source "$other/depth" || return
    time_of_commit || return
    local again=$scratch/again/$target/release
    rm -rf "$other/files" "$scratch"/again/*-linux-*
    (
        umask 077
        export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} XDG_CACHE_HOME=${XDG_CACHE_HOME:-$HOME/.cache}
        export CARGO_HOME=$other/cargo HOME=$other USER=other
        build "$other/depth" "$scratch/again" "${as_other[@]}" &&
            CARGO_TARGET_DIR=$scratch/again "${as_other[@]}" \
                "$other/depth/scripts/package.sh" "${packages[@]}" --arch "$arch" "$again" "$other/files"
    ) && same_bytes "$1" "$again" && same_bytes "$directory" "$other/files"
}

# same_bytes DIR AGAIN: compares the files of AGAIN with those of the same names in DIR.
same_bytes() {
    local file number=0 differing=()
    while read -r -d '' file; do
        cmp "$1/$file" "$2/$file" || differing+=("$file")
        number=$((number + 1))
    done < <(find "$2" -maxdepth 1 -type f ! -name '.*' ! -name '*.d' -printf '%P\0')
    ((number > 0)) || die "nothing to compare in $2"
    ((${#differing[@]} == 0)) || { say "OTHER BYTES when built again: ${differing[*]}" && return 1; }
    say "the same bytes: $number files"
}

main "$@"
