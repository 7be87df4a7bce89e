#!/usr/bin/env bash
# Times our plugins beside the reference's, in turns and in one run, in a private network,
# each from the start of the process to its end.
#
#     scripts/bench.sh [--reference DIR] [--rounds N] [CASE...]
#
# DIR is /usr/lib/cni by default, N 200, and every case is run:
#
#     attach     VERSION, loopback ADD, bridge ADD and DEL with host-local
#     growth     bridge with host-local at 0, 100, 500 and 1,000 pods
#     leases     host-local at 1, 1,000, 10,000 and 60,000 leases
#     ports      portmap ADD and DEL, with no other port and with 5,000; connections by them
#     bandwidth  bandwidth ADD, CHECK and DEL; what passes a limit, by iperf3, in ten minutes
#
# Needs Rust and an idle machine; works as root and as an ordinary user who may make user
# namespaces. Installs ip, iperf3, iptables and the reference (Debian's
# containernetworking-plugins) where they are missing, for which it has to be root or to have sudo.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    local reference=/usr/lib/cni rounds=200 cases=()
    while (($# > 0)); do
        case $1 in
            --reference | --rounds)
                (($# > 1)) || die "$1 needs a value"
                if [[ $1 == --rounds ]]; then rounds=$2; else reference=$(realpath "$2"); fi
                shift
                ;;
            attach | growth | leases | ports | bandwidth) cases+=("$1") ;;
            *) die "unknown option or case $1" ;;
        esac
        shift
    done
    need_rust
    need ip iproute2
    need unshare util-linux
    need iperf3 iperf3
    need "$reference/bridge" containernetworking-plugins
    # The reference's portmap runs it.
    need iptables iptables

    say "building static executables"
    local executables
    executables=$(static_executables)
    local bench=(cargo bench --quiet --locked --package tests --bench plugins)
    "${bench[@]}" --no-run

    say "timing"
    printf 'ours       %s: %s\n' "$executables" "$(version "$executables")"
    printf 'reference  %s: %s\n' "$reference" "$(version "$reference")"
    printf 'machine    %s processors, Linux %s, load %s\n' \
        "$(nproc)" "$(uname -r)" "$(cut -d' ' -f1-3 /proc/loadavg)"
    in_private_network "${bench[@]}" --offline -- \
        --ours "$executables" --reference "$reference" --rounds "$rounds" "${cases[@]}"
}

# What the bridge in a directory says of itself, and the package that it comes from.
version() {
    local file
    file=$(realpath "$1/bridge")
    "$file" </dev/null 2>&1 | sed -n 1p
    # shellcheck disable=SC2016 # for dpkg-query to expand
    dpkg-query --search "$file" 2>/dev/null | cut -d: -f1 |
        xargs -r dpkg-query --show --showformat='           package ${Package} ${Version}\n'
}

main "$@"
