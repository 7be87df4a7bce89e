#!/usr/bin/env bash
# Builds the executables and runs all tests in a private network: this machine's links, addresses
# and files stay unchanged. Passes its arguments to the test runner:
#
#     scripts/test.sh                           everything
#     scripts/test.sh -E 'package(bridge)'      some of it, with cargo-nextest
#     PLUGINS_UNDER_TEST=/opt/cni/bin scripts/test.sh
#
# Needs Rust. Works as root, and as an ordinary user who may create user namespaces. Installs ip,
# nft, iptables, ping, dnsmasq, dbus-daemon, firewalld, strace, groff and the reference's plugins if
# they are missing; this needs root or sudo. Uses cargo-nextest if it exists. At the end, names the
# tests that this kernel cannot run.

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
    need iptables-legacy iptables
    need dbus-daemon dbus-daemon
    need_firewalld
    need strace strace
    need groff groff-base
    # Some tests run the reference, too.
    need /usr/lib/cni/bridge containernetworking-plugins

    # Builds outside the namespace, where crates can be fetched; inside, everything is built.
    say "building"
    build_tests

    local features=yes profile=default
    in_private_network ip link add probe type bridge vlan_filtering 1 2>/dev/null || features=no
    [[ -e /proc/net/sctp ]] || modprobe sctp 2>/dev/null || features=no
    in_private_network tc qdisc add dev lo root fq_codel 2>/dev/null || features=no
    [[ $features == yes ]] || profile=no-vlan-filtering

    say "testing"
    # A changed snapshot fails the test; INSTA_UPDATE=new writes it to a file.
    export INSTA_UPDATE=${INSTA_UPDATE:-no}
    # A test waits most of the time: for packets that must not arrive, and for the kernel, which removes
    # namespaces in the background.
    export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$((3 * $(nproc)))}
    if cargo nextest --version >/dev/null 2>&1; then
        in_private_network cargo nextest run --workspace --offline --locked \
            --profile "$profile" "$@"
        cargo test --workspace --offline --locked --quiet --doc
    else
        local tests=()
        mapfile -t tests < <(basename --suffix .rs tests/tests/*.rs)
        [[ $features == yes ]] ||
            mapfile -t tests < <(printf '%s\n' "${tests[@]}" | grep -vxE 'bridge_vlan.*|portmap_sctp|bandwidth_queue')
        in_private_network cargo test --workspace --exclude tests --offline --locked \
            --no-fail-fast "$@"
        in_private_network cargo test --package tests --lib "${tests[@]/#/--test=}" \
            --offline --locked --no-fail-fast "$@"
    fi
    say "all tests passed"
    [[ $features == yes ]] || {
        not_run bridge_vlan "VLAN filtering, SCTP or fq_codel"
        not_run bridge_vlan_gateway "VLAN filtering, SCTP or fq_codel"
        not_run portmap_sctp "VLAN filtering, SCTP or fq_codel"
        not_run bandwidth_queue "VLAN filtering, SCTP or fq_codel"
    }
}

# not_run TESTS FEATURE: names the tests that need a feature that the kernel lacks.
not_run() {
    say "not run, since this kernel lacks $2:"
    cargo test --quiet --workspace --test "$1" --offline --locked -- --list |
        sed -n "s/\(.*\): test\$/    $1::\1/p"
}

main "$@"
