#!/usr/bin/env bash
# Prints the licences of the code in the executables that is not of this repository. Most of them ask for
# their text to be distributed with the executables.
#
#     scripts/notices.sh ARCH
#
# ARCH is an architecture of architectures.txt. The same source prints the same bytes on every machine.
#
# Needs Rust. Installs jq if it is missing.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    (($# == 1)) || die "which architecture? scripts/notices.sh ARCH"
    need_rust
    need jq jq
    local crates crate licence manifest file sum sums=()
    local -A users=() files=()
    crates=$(crates_of "$1")
    while IFS=$'\t' read -r crate licence manifest; do
        for file in "${manifest%/*}"/{LICEN[CS]E,COPYING,COPYRIGHT,NOTICE,UNLICENSE}*; do
            # LICENSE, which has the same text, comes before these notices.
            { [[ -f $file ]] && ! grep -q 'TERMS AND CONDITIONS FOR USE, REPRODUCTION' "$file"; } || continue
            sum=$(sha256sum <"$file")
            [[ -n ${files[$sum]:-} ]] || { sums+=("$sum") && files[$sum]=$file; }
            users[$sum]+="${users[$sum]:+, }$crate"
        done
    done <<<"$crates"

    line
    cat <<'EOF'
The executables also contain code of others:

- Rust's standard library (MIT OR Apache-2.0), copyright The Rust Project contributors.
- A C library: musl (MIT), copyright 2005-2020 Rich Felker, et al., or, if the name of the target ends
  in "-gnu", the GNU C library (LGPL-2.1-or-later). With the source of this suite, scripts/release.sh
  links the executables with another version of the library.
- These crates. Texts other than the Apache License follow:

EOF
    while IFS=$'\t' read -r crate licence _; do
        echo "  $crate: $licence"
    done <<<"$crates"
    for sum in "${sums[@]}"; do
        line
        fold --spaces --width 100 <<<"${users[$sum]}" | sed 's/ $//'
        echo
        cat "${files[$sum]}"
    done
}

line() {
    printf '\n%s\n' ========================================================================
}

# crates_of ARCH: prints name and version, licence, and manifest of each crate in the executables, and of
# crates whose macros wrote code of the executables.
crates_of() {
    local target
    target=$(awk -v arch="$1" '$1 == arch { print $2; exit }' scripts/architectures.txt)
    [[ -n $target ]] || die "unknown architecture $1"
    LC_ALL=C join -t $'\t' \
        <(cargo tree --quiet --locked --workspace --edges normal --target "$target" --prefix none --format '{p}' |
            sed 's/ (proc-macro)//; s/ (\*)$//' | LC_ALL=C sort -u) \
        <(cargo metadata --quiet --locked --format-version 1 --filter-platform "$target" |
            jq -r '.packages[] | select(.source) | "\(.name) v\(.version)\t\(.license)\t\(.manifest_path)"' | LC_ALL=C sort)
}

main "$@"
