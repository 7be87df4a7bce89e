#!/bin/sh
# Installs the plugins and cnitool where container runtimes look for them:
#
#     install.sh [--from DIR] [--conflist FILE] [--drop-ins] [--force] [DIRECTORY]
#
# DIRECTORY is /opt/cni/bin by default. The executables are those of --from, else those beside this
# script (as in a release), else those built in this checkout. `cnitool install` does the work;
# `cnitool install --help` describes it.
#
# The script needs only a shell.

set -eu

main() {
    from=$(asked_from "$@")
    if [ -n "$from" ]; then
        [ -x "$from/cnitool" ] || die "$from has no cnitool: --from names the directory of the executables"
        exec "$from/cnitool" install "$@"
    fi
    here=$(dirname "$0")
    built=${CARGO_TARGET_DIR:-$here/../target}
    for from in "$here" "$built/$(uname -m)-unknown-linux-musl/release" "$built/release"; do
        [ ! -x "$from/cnitool" ] || exec "$from/cnitool" install --from "$from" "$@"
    done
    die "no executables beside $0 and none in $built: name their directory by --from, or build them first:" \
        "cargo build --release --locked --bins"
}

# Prints the value of --from, if it is given.
asked_from() {
    before=
    for word; do
        case $before in
            --from) printf '%s\n' "$word" ;;
        esac
        case $word in
            --from=*) printf '%s\n' "${word#--from=}" ;;
        esac
        before=$word
    done
}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

main "$@"
