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
# that builds. Installs minisign if it is missing and there is a key.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"

main() {
    (($# == 1)) || die "usage: [MINISIGN_KEY=FILE] scripts/sign.sh DIR"
    local key=${MINISIGN_KEY:+$(realpath "$MINISIGN_KEY")}
    cd "$1"
    rm -f -- SHA256SUMS SHA256SUMS.minisig ./*.sha256 ./*.sha512
    checksums
    if [[ -n $key ]]; then
        signature "$key"
    else
        say "NOT SIGNED: for a signature, set MINISIGN_KEY to the file of a secret key"
    fi
}

checksums() {
    local file files=(*)
    for file in "${files[@]}"; do
        sha256sum "$file" >"$file.sha256"
        sha512sum "$file" >"$file.sha512"
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
