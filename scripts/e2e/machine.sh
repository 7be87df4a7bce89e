# shellcheck shell=bash
# Sets up the runtimes' machine: files, control groups, the network and another host. Sourced by
# scripts/e2e.sh inside its namespaces.

readonly ROOM=/run/e2e
# Name that scripts/image.sh gives the image.
# shellcheck disable=SC2034 # used by the others
readonly IMAGE=localhost/peer:1

# Replaces this machine's directories, so later changes do not affect it.
furnish() {
    local copies=/dev/shm/copies
    mount -t tmpfs tmpfs /dev/shm
    mkdir "$copies"
    cp "${PLUGIN_EXECUTABLES[@]/#/$PLUGINS/}" "$copies"
    cp "$TOOLS"/{cri,peer,cnitool,cni-agent} "$copies"

    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /var/lib
    mkdir -p "$ROOM/etc" "$ROOM/work" "$ROOM/bin" /run/netns
    mount -t overlay overlay -o lowerdir=/etc,upperdir=$ROOM/etc,workdir=$ROOM/work /etc
    mount -t tmpfs tmpfs /opt
    mkdir -p /opt/cni/bin /etc/cni
    mount -t tmpfs tmpfs /etc/cni
    mkdir /etc/cni/net.d
    mv "$copies"/{cri,peer,cnitool,cni-agent} "$ROOM/bin/"
    mv "$copies"/* /opt/cni/bin/
    rmdir "$copies"
    export PATH="$ROOM/bin:$PATH"

    own_control_groups
    own_network
    # shellcheck disable=SC2154 # set where this is sourced
    "$here/scripts/image.sh" "$ROOM/image.tar" "$ROOM/bin/peer"
    cd "$ROOM" || return
}

# Moves the processes into a group: a group with processes cannot have child groups with limits.
own_control_groups() {
    mount -t sysfs sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir /sys/fs/cgroup/init
    echo 0 >/sys/fs/cgroup/init/cgroup.procs
}

# Creates another host, 192.0.2.2 and 2001:db8::2, at the other end of the uplink; it runs a server.
own_network() {
    ip link set lo up
    ip netns add outside
    ip link add uplink type veth peer name uplink netns outside
    ip address add 192.0.2.1/24 dev uplink
    ip address add 2001:db8::1/64 dev uplink nodad
    ip link set uplink up
    outside ip link set lo up
    outside ip address add 192.0.2.2/24 dev uplink
    outside ip address add 2001:db8::2/64 dev uplink nodad
    outside ip link set uplink up
    outside peer serve &
}

outside() {
    nsenter --net=/run/netns/outside -- "$@"
}

# Deletes what plugins keep after the last container, bridges and rules, which another case may use
# differently.
clear_network() {
    local bridge
    for bridge in $(ip -oneline link show type bridge | awk -F ': ' '{ print $2 }'); do
        ip link delete "$bridge"
    done
    nft flush ruleset
}

# left: lists everything that attachments and pods can leave, one per line.
left() {
    ip -oneline link show type veth | grep -v ': uplink@' | sed 's/^/link: /' || true
    ip -oneline link show type ifb | sed 's/^/link: /'
    tc qdisc show | grep -E ' (tbf|htb|ingress) ' | sed 's/^/qdisc: /' || true
    nft list ruleset 2>/dev/null | grep -E '"cni:|CNI-(DN-)?[0-9a-f]' | sed 's/^/rule: /' || true
    # host-local's index stays in a hidden directory. kindnet's leases are in a directory of their own.
    # That process 1 of this pid namespace reaps is known until the next boot.
    find /var/lib/cni /run/cni /run/cni-ipam-state -name '.?*' -prune -o -type f \
        ! -name lock ! -name 'last_reserved*' ! -path '/run/cni/reaping/*' -print 2>/dev/null | sed 's/^/file: /' || true
    find /run/netns -type f ! -name outside | sed 's/^/namespace: /'
    processes | sed 's/^/process: /'
}

# Lists processes of runtimes, plugins and pods.
processes() {
    local process name
    for process in /proc/[0-9]*; do
        name=$(tr '\0' ' ' 2>/dev/null <"$process/cmdline") || continue
        case $name in
            *containerd-shim* | *conmon* | *slirp4netns* | rootlessport* | /opt/cni/bin/* | *--left-over*) echo "$name" ;;
            '/peer serve '*) echo "$name" ;;
        esac
    done
}

# seen KIND...: checks that `left` lists something of each kind, and so could detect leftovers.
seen() {
    local there kind
    there=$(left)
    for kind in "$@"; do
        grep -q "^$kind: " <<<"$there" || { printf 'no %s among:\n%s\n' "$kind" "$there" && return 1; }
    done
}

# Waits until nothing is left: background processes may remove things for up to five seconds.
nothing_left() {
    local rest
    for _ in {1..50}; do
        rest=$(left)
        [[ -n $rest ]] || return 0
        sleep 0.1
    done
    printf '%s\n' "$rest"
    return 1
}
