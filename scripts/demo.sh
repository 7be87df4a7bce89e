#!/usr/bin/env bash
# Shows two sandboxes that get their network from these plugins:
#
#     scripts/demo.sh [CONFLIST]          conf-examples/dual-stack.conflist by default
#
# Builds the plugins and cnitool, not optimized. Creates a network namespace without a connection to
# this machine's network. Attaches two sandboxes to a bridge there and shows their addresses. Pings
# each one from the other, and the gateway from both. Then runs check, detaches them, and shows that
# nothing is left. Fails if a step fails. PLUGINS_UNDER_TEST=DIR uses the plugins in DIR.
#
# Needs Rust. Works as root, and as an ordinary user who may create user namespaces. Installs ip,
# ping and a C compiler if they are missing; this needs root or sudo.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"

main() {
    local conflist
    conflist=$(realpath "${1:-$here/conf-examples/dual-stack.conflist}")
    cd "$here"
    need_rust
    cat <<EOF
This builds the plugins and cnitool, which takes about 3 minutes the first time on two processors, and
then takes 5 seconds to attach two sandboxes to a bridge, ping and detach them. All of that happens in
network and mount namespaces of its own: this machine's links, addresses and files stay unchanged.
EOF
    print_time
    need ip iproute2
    need unshare util-linux
    need ping iputils-ping

    say "building executables that are not optimized"
    cargo build --locked --bins "${EXECUTABLES[@]/#/--package=}"
    local executables=${CARGO_TARGET_DIR:-target}/debug
    executables=$(realpath "$executables")
    local plugins=${PLUGINS_UNDER_TEST:-$executables}
    CNI_PATH=$(realpath "$plugins") PATH="$executables:$PATH" \
        in_private_network "$here/scripts/demo.sh" --inside "$conflist"
}

inside() {
    # shellcheck disable=SC2154 # set where it runs
    trap 'status=$?; ((status == 0)) || printf "\nFAILED\n"' EXIT
    local network
    network=$(sed -n 's/.*"name": *"\([^"]*\)".*/\1/p' "$1" | head -n 1)
    NETCONFPATH=$(dirname "$1")
    export NETCONFPATH

    say "network $network, from $1"
    cat "$1"
    local pod
    for pod in a b; do
        say "cnitool add $network /run/netns/$pod"
        ip netns add "$pod"
        cnitool add "$network" "/run/netns/$pod" >"/run/$pod.json"
        in_pod "$pod" ip -brief address show dev eth0
        in_pod "$pod" ip route show default
        in_pod "$pod" ip -6 route show default
    done

    say "the host's side"
    ip -brief link
    say "pings"
    ping_all a b
    ping_all b a

    say "cnitool check"
    for pod in a b; do
        cnitool check "$network" "/run/netns/$pod"
        echo "  $pod is as add left it"
    done

    say "cnitool del"
    for pod in a b; do
        cnitool del "$network" "/run/netns/$pod"
        echo "  $pod is detached"
    done
    say "what is left, but for the bridge"
    show_nothing_left
    say "all of it worked"
}

in_pod() {
    nsenter --net="/run/netns/$1" -- "${@:2}"
}

# ping_all FROM TO: pings every address of the pod TO and every gateway from the pod FROM.
ping_all() {
    local to_pod to_gateway address
    mapfile -t to_pod < <(addresses "$2")
    mapfile -t to_gateway < <(gateways "$1")
    # Without addresses the pings would prove nothing.
    local expected
    expected=$(grep -c '"address"' "/run/$2.json")
    ((${#to_pod[@]} == expected && ${#to_gateway[@]} > 0))
    for address in "${to_pod[@]}"; do
        ping_from "$1" "$address" "pod $2"
    done
    for address in "${to_gateway[@]}"; do
        ping_from "$1" "$address" "the gateway"
    done
}

ping_from() {
    local answer
    answer=$(in_pod "$1" ping -n -c 1 -W 2 "$2") || {
        printf '  pod %s -> %-11s %-12s no answer\n' "$1" "$3" "$2"
        return 1
    }
    printf '  pod %s -> %-11s %-12s %s\n' "$1" "$3" "$2" "$(grep -o 'time=.*' <<<"$answer")"
}

addresses() {
    in_pod "$1" ip -oneline address show dev eth0 scope global | awk '{ sub("/.*", "", $4); print $4 }'
}

gateways() {
    {
        in_pod "$1" ip route show default
        in_pod "$1" ip -6 route show default
    } | awk '{ print $3 }'
}

show_nothing_left() {
    nothing "links on the host" "$(ip -oneline link show type veth)"
    nothing "links in pod a" "$(in_pod a ip -oneline link show up)"
    nothing "links in pod b" "$(in_pod b ip -oneline link show up)"
    # host-local's index stays in a hidden directory.
    nothing "leases" "$(find /var/lib/cni/networks -name '.*' -prune -o \
        -name '*[.:]*[0-9a-f]' ! -name 'last_reserved*' -print)"
    nothing "cached results" "$(find /var/lib/cni/results -type f)"
}

nothing() {
    printf '  %-18s %s\n' "$1:" "${2:-none}"
    [[ -z $2 ]]
}

if [[ ${1:-} == --inside ]]; then
    inside "$2"
else
    main "$@"
fi
