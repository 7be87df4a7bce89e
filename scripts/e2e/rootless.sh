# shellcheck shell=bash
# Tests containers of an ordinary user's podman with its CNI backend. Podman calls the plugins in a
# user namespace, in a network namespace between the host and the containers; slirp4netns and
# rootlessport pass traffic between this and the host. Sourced by scripts/e2e.sh.

readonly ROOTLESS_HOME=/opt/e2e

try_rootless() {
    under "podman, rootless"
    create_user
    check "podman load" rootless podman load --quiet --input "$ROOM/image.tar"
    check "podman network create" rootless podman network create --ipv6 \
        --subnet 10.5.0.0/24 --subnet fd00:5::/64 pods
    check "its chain is bridge, portmap, firewall and tuning" \
        chain_is "$ROOTLESS_HOME/.config/cni/net.d/pods.conflist" bridge portmap firewall tuning
    check "podman run" run_rootless other
    check "FORWARD drops" rootless_forward DROP
    check "podman run with ports and a MAC" run_rootless web --mac-address 02:00:00:00:00:07 \
        --publish 8095:80 --publish 8096:53/udp
    try_rootless_traffic
    check "what they have is seen" seen_rootless
    check "without firewall in its chain, a container is dropped" rootless_dropped
    check "podman restart" rootless podman restart --time 0 web
    check "its port from another host, after a restart" within 5 answers web tcp 192.0.2.1:8095 outside
    local web
    web=$(rootless podman inspect --format '{{.Id}}' web)
    check "files name it" rootless_files "$web"
    check "podman rm" rootless podman rm --force --time 0 web
    check "its ports are closed" rootless_closed
    check "the other container goes on" seen_as 192.0.2.1 192.0.2.2:80 in_rootless other
    check "nothing is left of it" rootless_left 1
    check "no file names it" no_rootless_files "$web"
    check "podman rm of the other" rootless podman rm --force --time 0 other
    check "podman network rm" rootless podman network rm pods
    check "podman system migrate, which ends its process" rootless podman system migrate
    check "nothing is left" nothing_left
}

try_rootless_traffic() {
    check "TCP port from another host" within 5 answers web tcp 192.0.2.1:8095 outside
    check "UDP port from another host" within 5 answers web udp 192.0.2.1:8096 outside
    check "TCP port from the host" answers web tcp 127.0.0.1:8095
    # rootlessport does not use portmap's rules; these two do.
    check "TCP port by the bridge, from another container" answers web tcp 10.5.0.1:8095 in_rootless other
    check "UDP port by the bridge, from the container itself" answers web udp 10.5.0.1:8096 in_rootless web
    check "container to container, IPv4" answers web tcp "$(rootless_address web)" in_rootless other
    check "container to container, IPv6" answers other tcp "$(rootless_address6 other)" in_rootless web
    check "containers leave as the host" seen_as 192.0.2.1 192.0.2.2:80 in_rootless web
    check "the container has its MAC" rootless_mac web 02:00:00:00:00:07
}

rootless_closed() {
    refused tcp 192.0.2.1:8095 outside
    refused udp 192.0.2.1:8096 outside
    refused tcp 10.5.0.1:8095 in_rootless other
}

# Creates an ordinary user, for whom useradd reserves further user IDs. The home is not below /run,
# which podman replaces.
create_user() {
    useradd --no-log-init --create-home --home-dir "$ROOTLESS_HOME" e2e
    install -d -o e2e -g e2e "$ROOTLESS_HOME"/.config{,/containers} "/run/user/$(id -u e2e)"
    configure_podman
    cp "$ROOM/containers.conf" "$ROOTLESS_HOME/.config/containers/containers.conf"
    # The device may belong to root alone.
    mount -t tmpfs tmpfs /dev/net
    mknod --mode 666 /dev/net/tun c 10 200
}

# Runs a command as that user.
rootless() {
    setpriv --reuid e2e --regid e2e --clear-groups env --ignore-environment PATH="$PATH" \
        HOME="$ROOTLESS_HOME" XDG_RUNTIME_DIR="/run/user/$(id -u e2e)" STORAGE_DRIVER=vfs "$@"
}

# run_rootless NAME [OPTION...]
run_rootless() {
    rootless podman run --detach --network "${network:-pods}" --hostname "$1" --name "$1" "${@:2}" "$IMAGE"
}

# Runs a command in the network between the host and the containers.
rootless_netns() {
    rootless podman unshare --rootless-netns "$@"
}

rootless_forward() {
    rootless_netns iptables --policy FORWARD "$1"
    rootless_netns ip6tables --policy FORWARD "$1"
}

# Runs a container in a network whose chain has no firewall.
rootless_dropped() {
    rootless podman network create --subnet 10.7.0.0/24 bare
    sed -i '/"type": "firewall"/ { N; s/.*/"type": "tuning"/ }' "$ROOTLESS_HOME/.config/cni/net.d/bare.conflist"
    network=bare run_rootless bare
    refused tcp 192.0.2.2:80 in_rootless bare
    rootless podman rm --force --time 0 bare
    rootless podman network rm bare
}

# rootless_mac NAME MAC
rootless_mac() {
    local link
    link=$(in_rootless "$1" ip -oneline link show dev eth0)
    [[ $link == *" $2 "* ]] || { echo "$link" && return 1; }
}

# rootless_left COUNT: checks that COUNT containers have links, leases and permission there.
rootless_left() {
    local there thing
    there=$(rootless_netns sh -c 'ip -oneline link show type veth
        find /var/lib/cni/networks/pods -name "10.*"
        nft list set inet cni-firewall pods4')
    for thing in veth /pods/10 '10\.5\.0\.[0-9]* comment'; do
        (($(grep -o "$thing" <<<"$there" | grep -c .) == $1)) || { echo "$there" && return 1; }
    done
}

# rootless_files ID: lists the plugins' files of a container, and fails without one.
rootless_files() {
    rootless_netns find /run/cni /var/lib/cni -type f | grep "$1"
}

no_rootless_files() {
    ! rootless_files "$1"
}

seen_rootless() {
    rootless_left 2
}

# rootless_address NAME
rootless_address() {
    rootless podman inspect --format '{{.NetworkSettings.Networks.pods.IPAddress}}:80' "$1"
}

rootless_address6() {
    rootless podman inspect --format '[{{.NetworkSettings.Networks.pods.GlobalIPv6Address}}]:80' "$1"
}

# in_rootless NAME COMMAND...
in_rootless() {
    nsenter --net --target "$(rootless podman inspect --format '{{.State.Pid}}' "$1")" -- "${@:2}"
}
