#!/usr/bin/env bash
# Builds the executables and runs the tests in a private network: this machine's links, addresses
# and files stay unchanged. Passes its arguments to the test runner:
#
#     scripts/test.sh                           all tests, with a sample of the injected faults
#     scripts/test.sh --all                     the same, then scripts/torture.sh: all faults and calls
#     scripts/test.sh -E 'package(bridge)'      some tests, with cargo-nextest
#     PLUGINS_UNDER_TEST=/opt/cni/bin scripts/test.sh
#
# On two processors, the first build takes about 5 minutes, all tests 15, and --all an hour or more.
# TORTURE=N tries N faults in each test that injects them (4 by default, .ci/run 24). No option
# includes fuzzing, releases (test-packages.sh) or runtimes (e2e.sh).
#
# Needs Rust. Works as root, and as an ordinary user who may create user namespaces. Installs ip,
# nft, iptables, ping, dnsmasq, dbus-daemon, firewalld, strace, groff and the reference's plugins if
# they are missing; this needs root or sudo. Uses cargo-nextest if it exists. At the end, also after
# a failure, names the tests that this kernel cannot run.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

readonly FEATURE_TESTS=(bridge_vlan bridge_vlan_gateway portmap_sctp bandwidth_queue ipvlan vlan dummy vrf vrf_moves vrf_faults agent_wireguard agent_wireguard_keys)

main() {
    local all=no passed=yes
    if [[ ${1:-} == --all ]]; then
        (($# == 1)) || die "--all takes no other argument"
        all=yes
        shift
    fi
    need_rust
    print_time
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
    say "building, the first time about 5 minutes on two processors"
    build_tests

    local features=yes profile=default
    in_private_network ip link add probe type bridge vlan_filtering 1 2>/dev/null || features=no
    [[ -e /proc/net/sctp ]] || modprobe sctp 2>/dev/null || features=no
    in_private_network ip link add probe type dummy 2>/dev/null || features=no
    in_private_network ip link add probe type wireguard 2>/dev/null || features=no
    in_private_network tc qdisc add dev lo root fq_codel 2>/dev/null || features=no
    [[ $features == yes ]] || profile=no-vlan-filtering

    say "testing, all of it about 15 minutes"
    # A changed snapshot fails the test; INSTA_UPDATE=new writes it to a file.
    export INSTA_UPDATE=${INSTA_UPDATE:-no} TORTURE=${TORTURE:-4}
    # A test waits most of the time: for packets that must not arrive, and for the kernel, which removes
    # namespaces in the background.
    export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$((3 * $(nproc)))}
    run_tests "$@" || passed=no
    [[ $all == no ]] || scripts/torture.sh || passed=no
    [[ $features == yes ]] || name_feature_tests
    [[ $passed == yes ]] || die "not all tests passed: see above"
    say "all tests passed"
}

# Runs in the private network what the arguments select. Runs all of it, and fails if a part failed.
run_tests() {
    local status=0
    if cargo nextest --version >/dev/null 2>&1; then
        in_private_network cargo nextest run --workspace --offline --locked \
            --profile "$profile" "$@" || status=1
        cargo test --workspace --offline --locked --quiet --doc || status=1
    else
        local tests=()
        mapfile -t tests < <(basename --suffix .rs tests/tests/*.rs)
        [[ $features == yes ]] ||
            mapfile -t tests < <(printf '%s\n' "${tests[@]}" | grep -vxF "$(printf '%s\n' "${FEATURE_TESTS[@]}")")
        in_private_network cargo test --workspace --exclude tests --offline --locked \
            --no-fail-fast "$@" || status=1
        in_private_network cargo test --package tests --lib "${tests[@]/#/--test=}" \
            --offline --locked --no-fail-fast "$@" || status=1
    fi
    return "$status"
}

name_feature_tests() {
    say "not run, since this kernel lacks links, qdiscs or SCTP:"
    cargo test --workspace "${FEATURE_TESTS[@]/#/--test=}" --offline --locked -- --list 2>&1 |
        sed -n 's,.* Running .*/\(.*\)\.rs .*,    \1:,p; s,\(.*\): test$,        \1,p'
}

main "$@"
