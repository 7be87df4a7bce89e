#!/usr/bin/env bash
# Times our plugins and the reference's alternately, in one run in a private network. A time is from
# the start of the process to its end.
#
#     scripts/bench.sh [--reference DIR] [--nftables-reference DIR] [--rounds N] [--pods N]
#         [--guards] [--quick] [--json FILE] [CASE...]
#
# Do not run it with real-time priority (chrt -f): on Linux 6.18, such a run did not end, and could not
# be killed until it had the usual priority again.
#
# DIR is /usr/lib/cni by default, N 200. Another build of this suite as DIR shares its nf_tables tables
# with ours: if these differ, each ADD with ipMasq takes a millisecond to replace the other's rules.
# By default all cases run:
#
#     attach      VERSION and CHECK of each plugin; ADD and DEL of loopback, host-local, static, and bridge
#     ptp         ptp with ipMasq and host-local, with IPv4 and with both families
#     single      macvlan, ipvlan, vlan, dummy, host-device and tap with host-local and IPv4, and sbr and
#                 vrf behind macvlan, as far as the kernel and the reference have them
#     dhcp        dhcp with dnsmasq, by a daemon of each side
#     floor       bridge ADD with host-local, beside a program that only sends its requests
#     chain       bridge with ipMasq and host-local, portmap with two ports, bandwidth in both directions
#     podman      podman's default network (bridge, portmap with two ports, firewall, tuning) behind FORWARD DROP
#     burst       the chain for 100 pods by 16 processes, and the delay for other programs
#     growth      bridge with host-local at 0, 100, 500 and 1,000 pods
#     leases      host-local at 1, 1,000, 10,000 and 60,000 leases
#     ports       portmap ADD and DEL, with no other port and with 5,000; connections through them
#     cluster     cni-agent for 1,000 and 5,000 nodes; packets between pods of two nodes
#     reload      cnitool reload of 500 pods
#     bandwidth   bandwidth ADD, CHECK and DEL
#     devices     bandwidth with limits of the runtime, and with podResources on a node with 10,000 devices
#     firewall    firewall ADD, CHECK and DEL, beside 100 other pods
#     tuning      tuning ADD, CHECK and DEL
#     datapath    the cost of a packet with 2 and --pods (1,000) pods, beside a bare bridge; --quick
#                 only shows that it works
#     latency     how long a small packet waits for a limit beside a load, and what passes the limit;
#                 takes 25 minutes, --quick only shows that it works
#     throughput  traffic through a limit, measured by iperf3 in ten minutes
#     footprint   size of the executables, and their peak memory
#
# --nftables-reference names a reference with the backend nftables (1.6 or later), for datapath; for
# latency it is a second reference.
# --guards measures datapath also beside cni-agent, and with "localhostGuard": "rules" of portmap.
# FILE gets all results with the machine, the kernel and the date.
#
# Needs Rust and an idle machine. Works as root, and as an ordinary user who may create user
# namespaces. Installs ip, iperf3, dnsmasq, nft, time, iptables and the reference (Debian's
# containernetworking-plugins) if they are missing; this needs root or sudo.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    local reference=/usr/lib/cni rounds=200 json=() cases=() path=()
    while (($# > 0)); do
        case $1 in
            --guards | --quick) path+=("$1") ;;
            --reference | --nftables-reference | --rounds | --pods | --json)
                (($# > 1)) || die "$1 needs a value"
                case $1 in
                    --reference) reference=$(realpath "$2") ;;
                    --nftables-reference) path+=("$1" "$(realpath "$2")") ;;
                    --pods) path+=("$1" "$2") ;;
                    --rounds) rounds=$2 ;;
                    --json) json=(--json "$(realpath "$2")") ;;
                esac
                shift
                ;;
            attach | ptp | single | dhcp | floor | chain | podman | burst | growth | leases | ports | cluster | reload | bandwidth | devices | firewall | tuning | datapath | latency | throughput | footprint)
                cases+=("$1")
                ;;
            *) die "unknown option or case $1" ;;
        esac
        shift
    done
    need_rust
    need ip iproute2
    need unshare util-linux
    need iperf3 iperf3
    need dnsmasq dnsmasq-base
    need /usr/bin/time time
    # nft measures the cost of our DELs for other programs.
    need nft nftables
    need "$reference/bridge" containernetworking-plugins
    # The reference's portmap runs iptables.
    need iptables iptables

    say "building static executables"
    local executables
    executables=$(static_executables --bins --examples)
    local bench=(cargo bench --quiet --locked --package tests --bench plugins)
    "${bench[@]}" --no-run

    say "timing"
    printf 'ours       %s: %s\n' "$executables" "$(version "$executables")"
    printf 'reference  %s: %s\n' "$reference" "$(version "$reference")"
    printf 'machine    %s processors, Linux %s, load %s\n' \
        "$(nproc)" "$(uname -r)" "$(cut -d' ' -f1-3 /proc/loadavg)"
    export PLUGINS_UNDER_TEST=$executables
    in_private_network "${bench[@]}" --offline -- \
        --ours "$executables" --reference "$reference" --rounds "$rounds" "${path[@]}" "${json[@]}" "${cases[@]}"
}

# Prints the version of a directory's bridge, and its package.
version() {
    local file
    file=$(realpath "$1/bridge")
    "$file" </dev/null 2>&1 | sed -n 1p
    # shellcheck disable=SC2016 # for dpkg-query to expand
    dpkg-query --search "$file" 2>/dev/null | cut -d: -f1 |
        xargs -r dpkg-query --show --showformat='           package ${Package} ${Version}\n'
}

main "$@"
