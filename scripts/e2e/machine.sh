# shellcheck shell=bash
# The machine that runtimes run on: files, control groups, the network, another host beside it.
# Sourced by scripts/e2e.sh, within its namespaces.

readonly ROOM=/run/e2e
# What scripts/image.sh calls it.
# shellcheck disable=SC2034 # used by the others
readonly IMAGE=localhost/peer:1

# Nothing that is changed from here on is this machine's.
furnish() {
    local copies=/dev/shm/copies
    mount -t tmpfs tmpfs /dev/shm
    mkdir "$copies"
    cp "$PLUGINS"/{bridge,host-local,loopback,portmap,bandwidth} "$copies"
    cp "$TOOLS"/{cri,peer,cnitool} "$copies"

    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /var/lib
    mkdir -p "$ROOM/etc" "$ROOM/work" "$ROOM/bin" /run/netns
    mount -t overlay overlay -o lowerdir=/etc,upperdir=$ROOM/etc,workdir=$ROOM/work /etc
    mount -t tmpfs tmpfs /opt
    mkdir -p /opt/cni/bin /etc/cni
    mount -t tmpfs tmpfs /etc/cni
    mkdir /etc/cni/net.d
    mv "$copies"/{cri,peer,cnitool} "$ROOM/bin/"
    mv "$copies"/* /opt/cni/bin/
    rmdir "$copies"
    export PATH="$ROOM/bin:$PATH"

    own_control_groups
    own_network
    # shellcheck disable=SC2154 # set where this is sourced
    "$here/scripts/image.sh" "$ROOM/image.tar" "$ROOM/bin/peer"
    cd "$ROOM" || return
}

# Groups in which processes are cannot have groups with limits below them.
own_control_groups() {
    mount -t sysfs sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir /sys/fs/cgroup/init
    echo 0 >/sys/fs/cgroup/init/cgroup.procs
}

# Another host, 192.0.2.2 and 2001:db8::2, on the other end of this one's uplink; it serves.
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

# left: all that attachments and pods can leave, one a line; nothing where they are gone.
left() {
    ip -oneline link show type veth | grep -v ': uplink@' | sed 's/^/link: /' || true
    ip -oneline link show type ifb | sed 's/^/link: /'
    tc qdisc show | grep -E ' (tbf|htb|ingress) ' | sed 's/^/qdisc: /' || true
    nft list ruleset 2>/dev/null | grep -E '"cni:|CNI-(DN-)?[0-9a-f]' | sed 's/^/rule: /' || true
    # What host-local knows of them stays below a hidden directory.
    find /var/lib/cni /run/cni -name '.?*' -prune -o -type f \
        ! -name lock ! -name 'last_reserved*' -print 2>/dev/null | sed 's/^/file: /' || true
    find /run/netns -type f ! -name outside | sed 's/^/namespace: /'
    processes | sed 's/^/process: /'
}

# The processes that are neither this script, nor what it started for all of the time.
processes() {
    local process name
    for process in /proc/[0-9]*; do
        name=$(tr '\0' ' ' 2>/dev/null <"$process/cmdline") || continue
        case $name in
            *containerd-shim* | *conmon* | /opt/cni/bin/* | *--left-over*) echo "$name" ;;
            '/peer serve '*) echo "$name" ;;
        esac
    done
}

# seen KIND...: of each kind something is there. What would not be seen would not be missed.
seen() {
    local there kind
    there=$(left)
    for kind in "$@"; do
        grep -q "^$kind: " <<<"$there" || { printf 'no %s among:\n%s\n' "$kind" "$there" && return 1; }
    done
}

# Only for so long may things take to go away that others remove in the background.
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
