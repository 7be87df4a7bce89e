#!/usr/bin/env bash
# Tests that nodes can change between the former release and this source without draining:
#
#     scripts/test-upgrade.sh                    the last tag before this commit
#     scripts/test-upgrade.sh COMMIT|TAG         any other state of this repository
#     scripts/test-upgrade.sh DIR                executables that exist already
#
# Builds the former executables in a temporary directory, which it removes at the end, and runs the
# tests `upgrade*` with them in a private network: this machine's links, addresses and files stay
# unchanged. Needs Rust and git; root as scripts/test.sh does.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

# The former state while there is no tag: the last one before places in the comments of rules, and
# before queues for the flows of a limit.
readonly BEFORE_THE_FIRST_TAG=f1c2fbc0

main() {
    need_rust
    need git git
    need ip iproute2
    need ping iputils-ping
    need nft nftables
    local former=${1:-$(former_tag)} directory tests=()
    if [[ -d $former ]]; then
        directory=$(realpath "$former")
    else
        temporary=$(mktemp -d)
        trap 'rm -rf "$temporary"' EXIT
        build_former "$former"
        directory=$temporary/target/debug
    fi
    say "building this source"
    cargo build --locked --bins "${PACKAGES[@]}"
    mapfile -t tests < <(basename --suffix .rs tests/tests/upgrade*.rs)
    cargo test --locked --package tests "${tests[@]/#/--test=}" --no-run
    say "testing with the former release $former"
    FORMER_RELEASE=$directory in_private_network \
        cargo test --offline --locked --package tests "${tests[@]/#/--test=}" --no-fail-fast
    say "both ways work"
}

readonly PACKAGES=("${PLUGIN_EXECUTABLES[@]/#/--package=}" --package=cnitool --package=agent)

# Prints the last tag of a release before this commit.
former_tag() {
    git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null || echo "$BEFORE_THE_FIRST_TAG"
}

# build_former COMMIT: builds the executables of that state in $temporary.
build_former() {
    say "building $1 in $temporary"
    git rev-parse --quiet --verify "$1^{commit}" >/dev/null ||
        die "$1 is neither a directory nor a commit of this repository"
    git archive "$1" | tar -x -C "$temporary"
    CARGO_TARGET_DIR=$temporary/target \
        cargo build --locked --manifest-path "$temporary/Cargo.toml" --workspace --bins
}

main "$@"
