#!/usr/bin/env bash
# Writes the checksums of a release and signs them.
#
#     MINISIGN_KEY=FILE scripts/sign.sh DIR
#
# DIR gets, for each FILE in it, FILE.sha256 and FILE.sha512, and for all of them SHA256SUMS, in the
# format of sha256sum. The signature of SHA256SUMS, SHA256SUMS.minisig, covers every file. MINISIGN_KEY
# names the file of the secret key; without it, DIR gets no signature.
#
# The script needs neither Rust nor a network, so the key may stay on another machine than the one
# that builds. If DIR has SHA256SUMS already, its files must be those that SHA256SUMS lists: the script
# signs nothing that changed on the way. A copier who can change files can change SHA256SUMS, too, so
# compare the checksum of SHA256SUMS, which the script prints, with the one printed by the builder.
#
# Installs minisign if it is missing and there is a key.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"
# The order of names in SHA256SUMS is the same everywhere.
export LC_ALL=C

main() {
    (($# == 1)) || die "usage: [MINISIGN_KEY=FILE] scripts/sign.sh DIR"
    local key=
    key_is_readable
    [[ -z ${MINISIGN_KEY:-} ]] || key=$(realpath "$MINISIGN_KEY")
    cd "$1"
    same_files
    rm -f -- SHA256SUMS SHA256SUMS.minisig ./*.sha256 ./*.sha512
    checksums
    say "checksum of SHA256SUMS: $(sha256sum <SHA256SUMS | cut -d' ' -f1)"
    if [[ -n $key ]]; then
        signature "$key"
    else
        say "NOT SIGNED: for a signature, set MINISIGN_KEY to the file of a secret key"
    fi
}

# Compares the files with SHA256SUMS, if it exists.
same_files() {
    [[ -e SHA256SUMS ]] || return 0
    local files
    mapfile -t files < <(find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' ! -name '*.sha256' ! -name '*.sha512' \
        -printf '%P\n' | sort)
    diff <(sort SHA256SUMS) <(sha256sum -- "${files[@]}" | sort) ||
        die "$PWD has other files than its SHA256SUMS (<). If you changed them yourself, delete SHA256SUMS"
}

checksums() {
    local file files=(*)
    for file in "${files[@]}"; do
        sha256sum -- "$file" >"$file.sha256"
        sha512sum -- "$file" >"$file.sha512"
    done
    cat "${files[@]/%/.sha256}" >SHA256SUMS
}

# signature KEY: the trusted comment, which the signature covers and `minisign -V` prints, names the
# archives, so an old release cannot pass for a new one.
signature() {
    local archives=(*.tgz)
    need minisign minisign
    minisign -S -s "$1" -m SHA256SUMS -t "${archives[*]}"
}

main "$@"
