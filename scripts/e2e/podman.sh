# shellcheck shell=bash
# Tests containers of podman with its CNI backend and its own chain, in which all plugins are ours:
# bridge, host-local, portmap, firewall and tuning. Sourced by scripts/e2e.sh.

try_podman() {
    under podman
    configure_podman
    check "podman load" podman load --quiet --input "$ROOM/image.tar"
    check "podman network create" podman network create --ipv6 \
        --subnet 10.2.0.0/24 --subnet fd00:2::/64 pods
    check "its chain is bridge, portmap, firewall and tuning" \
        chain_is /etc/cni/net.d/pods.conflist bridge portmap firewall tuning
    check "FORWARD drops, as beside Docker" forward_policy DROP
    try_containers
    check "podman stop" podman stop --time 0 web
    check "its ports are closed" published_closed
    check "the other container goes on" answers other tcp "$(podman_address other):80"
    check "podman start" podman start web
    try_published "once it started again"
    check "podman rm" podman rm --force --time 0 web other
    try_two_networks
    check "nothing is left" nothing_left
    check "nothing is left of the firewall plugin" no_firewall
    check "FORWARD accepts again" forward_policy ACCEPT
}

# forward_policy POLICY: sets the policy of both families' chains.
forward_policy() {
    iptables --policy FORWARD "$1"
    ip6tables --policy FORWARD "$1"
}

try_containers() {
    check "podman run with ports" run_podman web --publish 8090:80 --publish 8091:53/udp
    check "podman run without" run_podman other
    try_published "from the start"
    check "127.0.0.1 leads to the port" answers web tcp 127.0.0.1:8090
    check "another container reaches the port" answers web tcp 192.0.2.1:8090 within_podman other
    check "container to container, IPv4" answers other tcp "$(podman_address other):80" within_podman web
    check "container to container, IPv6" answers other udp "[$(podman_address6 other)]:53" within_podman web
    check "containers leave as the host" seen_as 192.0.2.1 192.0.2.2:80 within_podman web
    check "what they have is seen" seen link rule file namespace process
    check "a port that a container has is refused" port_refused
    check "podman restart" podman restart --time 0 web
    try_published "after a restart"
}

# Podman requests the ports on each network. 127.0.0.1 reaches the container through the network
# that serves.
try_two_networks() {
    check "podman network create, another one" podman network create --subnet 10.3.0.0/24 more
    check "podman run with two networks and a port" run_podman two --network more --publish 8094:80
    check "its port from another host" within 5 answers two tcp 192.0.2.1:8094 outside
    check "its port from the host" answers two tcp 127.0.0.1:8094
    check "podman network disconnect, the one that serves" podman network disconnect pods two
    check "the port by the network that is left" within 5 answers two tcp 127.0.0.1:8094
    check "podman network connect" podman network connect pods two
    check "the port after it" answers two tcp 127.0.0.1:8094
    check "podman network disconnect, the other one" podman network disconnect more two
    check "the port by the network that came back" within 5 answers two tcp 127.0.0.1:8094
    check "podman network connect, with a port that is served" podman network connect more two
    check "podman restart with two networks" podman restart --time 0 two
    check "its port from another host, after a restart" within 5 answers two tcp 192.0.2.1:8094 outside
    check "podman rm with two networks" podman rm --force --time 0 two
    check "its port is closed" refused tcp 127.0.0.1:8094
    check "podman network rm" podman network rm more
}

# try_published WHEN
try_published() {
    check "TCP port from another host, $1" within 5 answers web tcp 192.0.2.1:8090 outside
    check "UDP port from another host, $1" within 5 answers web udp 192.0.2.1:8091 outside
    check "TCP port from the host, $1" answers web tcp 192.0.2.1:8090
}

published_closed() {
    refused tcp 192.0.2.1:8090 outside
    refused udp 192.0.2.1:8091 outside
    refused tcp 127.0.0.1:8090
}

# Podman itself does not check the port, since it does not listen.
port_refused() {
    local said
    ! said=$(run_podman third --publish 8090:80 2>&1) || { echo "it got the port" && return 1; }
    podman rm --force --time 0 third >/dev/null
    [[ $said == *8090*web* || $said == *8090*"$(podman inspect --format '{{.Id}}' web)"* ]] ||
        { echo "$said" && return 1; }
    answers web tcp 192.0.2.1:8090 outside
}

no_firewall() {
    local rules
    rules=$(iptables-save && ip6tables-save)
    ! grep -F -e '10.2.0.' -e 'fd00:2:' <<<"$rules"
}

# chain_is FILE TYPE...
chain_is() {
    local chain
    chain=$(sed -n 's/^ \{9\}"type": "\(.*\)".*/\1/p' "$1" | xargs)
    [[ $chain == "${*:2}" ]] || { cat "$1" && return 1; }
}

# run_podman NAME [OPTION...]
run_podman() {
    podman run --detach --network pods --hostname "$1" --name "$1" "${@:2}" "$IMAGE"
}

podman_address() {
    podman inspect --format '{{.NetworkSettings.Networks.pods.IPAddress}}' "$1"
}

podman_address6() {
    podman inspect --format '{{.NetworkSettings.Networks.pods.GlobalIPv6Address}}' "$1"
}

# within_podman NAME COMMAND...
within_podman() {
    nsenter --net="$(podman inspect --format '{{.NetworkSettings.SandboxKey}}' "$1")" -- "${@:2}"
}

# Podman adds all plugins that it knows and finds, such as dnsname, so it sees only ours.
configure_podman() {
    rm -f /etc/cni/net.d/*
    cat >"$ROOM/containers.conf" <<TOML
[containers]
pids_limit = 0
[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
TOML
    export CONTAINERS_CONF=$ROOM/containers.conf
}
