#!/usr/bin/env bash
# Builds the executables and runs every test in a private network: this machine's own
# links, addresses and files stay as they are. Arguments go to the test runner:
#
#     scripts/test.sh                           everything
#     scripts/test.sh -E 'package(bridge)'      some of it, with cargo-nextest
#     PLUGINS_UNDER_TEST=/opt/cni/bin scripts/test.sh
#
# Needs Rust; works as root and as an ordinary user who may make user namespaces. Installs
# ip, nft, ping, dnsmasq, strace, groff and the reference plugins where they are missing, for which it
# has to be root or to have sudo. cargo-nextest is used if it is there. What this kernel
# cannot run is named at the end.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    need_rust
    need ip iproute2
    need unshare util-linux
    need ping iputils-ping
    need nft nftables
    need dnsmasq dnsmasq-base
    need strace strace
    need groff groff-base
    # The reference, for the tests in which it is the other side.
    need /usr/lib/cni/bridge containernetworking-plugins

    # Outside, where crates can be fetched. Inside nothing is left to build.
    say "building"
    cargo build --workspace --locked --bins
    cargo test --workspace --locked --no-run

    local features=yes profile=default
    in_private_network ip link add probe type bridge vlan_filtering 1 2>/dev/null || features=no
    [[ -e /proc/net/sctp ]] || modprobe sctp 2>/dev/null || features=no
    [[ $features == yes ]] || profile=no-vlan-filtering

    say "testing"
    # A snapshot that differs fails; it is written down where INSTA_UPDATE=new asks for it.
    export INSTA_UPDATE=${INSTA_UPDATE:-no}
    if cargo nextest --version >/dev/null 2>&1; then
        in_private_network cargo nextest run --workspace --offline --locked \
            --profile "$profile" "$@"
        cargo test --workspace --offline --locked --quiet --doc
    else
        local tests=()
        mapfile -t tests < <(basename --suffix .rs tests/tests/*.rs)
        [[ $features == yes ]] ||
            mapfile -t tests < <(printf '%s\n' "${tests[@]}" | grep -vxE 'bridge_vlan.*|portmap_sctp')
        in_private_network cargo test --workspace --exclude tests --offline --locked \
            --no-fail-fast "$@"
        in_private_network cargo test --package tests --lib "${tests[@]/#/--test=}" \
            --offline --locked --no-fail-fast "$@"
    fi
    say "all tests passed"
    [[ $features == yes ]] || {
        not_run bridge_vlan "VLAN filtering or SCTP"
        not_run bridge_vlan_gateway "VLAN filtering or SCTP"
        not_run portmap_sctp "VLAN filtering or SCTP"
    }
}

# not_run TESTS FEATURE names the tests that need a feature that the kernel lacks.
not_run() {
    say "not run, since this kernel lacks $2:"
    cargo test --quiet --package tests --test "$1" --offline --locked -- --list |
        sed -n "s/\(.*\): test\$/    $1::\1/p"
}

main "$@"
