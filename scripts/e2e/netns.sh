# shellcheck shell=bash
# Runs servers in network namespaces, which cnitool attaches. Sourced by scripts/e2e.sh.

declare -A netns_server

# run_netns NAME: creates a namespace in which only a server runs, and waits until this answers.
run_netns() {
    ip netns add "$1"
    ip -netns "$1" link set lo up
    in_netns "$1" peer serve "$1" &
    netns_server[$1]=$!
    within 5 answers "$1" tcp 127.0.0.1:80 in_netns "$1"
}

end_netns() {
    kill "${netns_server[$1]}"
    wait "${netns_server[$1]}" || true
    ip netns delete "$1"
}

attach_netns() {
    run_netns "$1"
    cnitool add pods "/run/netns/$1" >/dev/null
}

detach_netns() {
    cnitool del pods "/run/netns/$1"
    end_netns "$1"
}

# in_netns NAME COMMAND...
in_netns() {
    nsenter --net="/run/netns/$1" -- "${@:2}"
}

netns_answers() {
    within 5 answers "$1" tcp "$(netns_address "$1"):80"
}

# netns_address NAME [4|6]
netns_address() {
    ip -netns "$1" -"${2:-4}" -oneline address show dev eth0 scope global |
        awk '{ sub("/.*", "", $4); print $4 }'
}
