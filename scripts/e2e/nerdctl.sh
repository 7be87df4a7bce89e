# shellcheck shell=bash
# Tests conf-examples/nerdctl.conflist and a second network of nerdctl, beside Docker. cnitool passes
# the arguments of nerdctl, which Debian lacks. Sourced by scripts/e2e.sh.

# Arguments of `nerdctl run --publish 8070:80 --publish 8071:53/udp --publish 127.0.0.1:8072:80`.
readonly NERDCTL_PORTS='{"portMappings": [
    {"HostPort": 8070, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "0.0.0.0"},
    {"HostPort": 8071, "ContainerPort": 53, "Protocol": "udp", "HostIP": "0.0.0.0"},
    {"HostPort": 8072, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "127.0.0.1"}]}'
readonly NERDCTL_ARGS='IgnoreUnknown=1;NERDCTL_CNI_DHCP_HOSTNAME=web'

try_nerdctl() {
    under "nerdctl's list"
    write_nerdctl
    run_netns web
    run_netns other
    run_netns far
    check "FORWARD drops, as beside Docker" forward_policy DROP
    check "ADD with ports" nerdctl_add bridge web "$NERDCTL_PORTS"
    check "ADD without" nerdctl_add bridge other
    check "ADD to another network" nerdctl_add more far
    try_nerdctl_ports
    check "container to container" answers web tcp "$(netns_address web):80" in_netns other
    check "containers leave as the host" seen_as 192.0.2.1 192.0.2.2:80 in_netns web
    check "those of the other network, too" seen_as 192.0.2.1 192.0.2.2:80 in_netns far
    check "but not to a container of the first" refused tcp "$(netns_address web):80" in_netns far
    check "nor from there" refused tcp "$(netns_address far):80" in_netns web
    check "CHECK" nerdctl_check
    check "what they have is seen" seen link rule file namespace
    end_netns web
    check "DEL after the end of the sandbox" nerdctl_del bridge web
    check "its ports are closed" nerdctl_closed
    check "the other goes on" seen_as 192.0.2.1 192.0.2.2:80 in_netns other
    check "DEL of the other" nerdctl_del bridge other
    check "DEL from another network" nerdctl_del more far
    end_netns other
    end_netns far
    check "nothing is left" nothing_left
    check "no rule names a bridge" no_nerdctl_rules
}

try_nerdctl_ports() {
    check "TCP port from another host" answers web tcp 192.0.2.1:8070 outside
    check "UDP port from another host" answers web udp 192.0.2.1:8071 outside
    check "TCP port from the host" answers web tcp 192.0.2.1:8070
    check "TCP port from another container" answers web tcp 192.0.2.1:8070 in_netns other
    check "UDP port from the container itself" answers web udp 192.0.2.1:8071 in_netns web
    check "the port of 127.0.0.1 from the host" answers web tcp 127.0.0.1:8072
    check "but not from another host" refused tcp 192.0.2.1:8072 outside
}

nerdctl_closed() {
    refused tcp 192.0.2.1:8070 outside
    refused udp 192.0.2.1:8071 outside
    refused tcp 127.0.0.1:8072
}

# Writes the default network, and the one that `nerdctl network create more` makes.
write_nerdctl() {
    rm -f /etc/cni/net.d/*
    # shellcheck disable=SC2154 # set where this is sourced
    cp "$here/conf-examples/nerdctl.conflist" /etc/cni/net.d/nerdctl-bridge.conflist
    sed -e 's/"name": "bridge"/"name": "more"/' -e 's/nerdctl0/br-more/' -e 's/10\.4\.0\./10.4.1./g' \
        "$here/conf-examples/nerdctl.conflist" >/etc/cni/net.d/nerdctl-more.conflist
}

# nerdctl_add NETWORK NAME [CAPABILITIES]
nerdctl_add() {
    CAP_ARGS=${3:-} CNI_ARGS=$NERDCTL_ARGS cnitool add "$1" "/run/netns/$2"
}

nerdctl_check() {
    cnitool check bridge /run/netns/web
    cnitool check bridge /run/netns/other
    cnitool check more /run/netns/far
}

nerdctl_del() {
    cnitool del "$1" "/run/netns/$2"
}

no_nerdctl_rules() {
    ! nft list ruleset | grep -e nerdctl0 -e br-more -e '10\.4\.'
}
