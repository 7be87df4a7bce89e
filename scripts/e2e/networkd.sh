# shellcheck shell=bash
# Tests a systemd-networkd that manages every link except the uplink, without and with the drop-in.
# Sourced by scripts/e2e.sh.

readonly NETWORKD=/lib/systemd/systemd-networkd
readonly NETWORKD_STATE=/run/systemd/netif

try_networkd() {
    under networkd
    write_conflist 1.0.0
    configure_networkd
    attach_netns one
    check "a pod is reached" netns_answers one
    start_networkd
    check "without the drop-in it takes a pod's link off the bridge" within 10 bridge_is_empty
    check "the pod is not reached any more" within 10 refused tcp "$(netns_address one):80"
    check "cnitool doctor says so" doctor_names_networkd
    stop_networkd
    detach_netns one

    # shellcheck disable=SC2154 # set where this is sourced
    check "install.sh --drop-ins" "$here/scripts/install.sh" --from "$PLUGINS" --drop-ins /opt/cni/bin
    attach_netns two
    start_networkd
    check "with the drop-in it leaves a pod's link" within 10 networkd_leaves veth
    check "and the bridge" networkd_leaves "$(bridge_of_pods)"
    check "the pod is reached" netns_answers two
    attach_netns three
    check "it leaves the link of a pod that comes later" within 10 networkd_leaves veth 2
    check "that pod is reached" netns_answers three
    check "cnitool doctor finds none that it manages" no_doctor_names_networkd
    stop_networkd
    detach_netns two
    detach_netns three
    check "nothing is left" nothing_left
}

configure_networkd() {
    mount -t tmpfs tmpfs /etc/systemd/network
    printf '[Match]\nName=!uplink lo\n[Network]\nLinkLocalAddressing=ipv4\n' \
        >/etc/systemd/network/90-all.network
    install -d -o systemd-network -g systemd-network "$NETWORKD_STATE" "$NETWORKD_STATE"/{links,leases,lldp}
}

# systemd-networkd waits for udev if /sys is writable, so it gets a read-only one, as in a
# container.
start_networkd() {
    # shellcheck disable=SC2016 # expanded inside
    unshare --mount sh -c 'mount -o remount,bind,ro /sys && exec "$0"' "$NETWORKD" \
        >>"$ROOM/networkd.log" 2>&1 &
    networkd_process=$!
}

stop_networkd() {
    kill "$networkd_process"
    wait "$networkd_process" || true
    rm -f "$NETWORKD_STATE"/links/*
}

# Asks the kernel. The state file of such a link may be absent for seconds: systemd-networkd 252 takes
# the message that a port left the bridge for the end of the link, finds the link again, and removes
# the new state file together with the old state.
bridge_is_empty() {
    local ports
    ports=$(ip -oneline link show master "$(bridge_of_pods)")
    [[ -z $ports ]] || { echo "$ports" && return 1; }
}

# networkd_leaves PREFIX [COUNT]: checks that exactly COUNT links (1 by default) have the prefix, and
# that systemd-networkd manages none of them.
networkd_leaves() {
    local index name state count=0
    while IFS=': ' read -r index name _; do
        [[ $name == "$1"* ]] || continue
        state=$(networkd_state "$index")
        [[ $state == unmanaged ]] || { echo "$name is ${state:-unknown}" && return 1; }
        count=$((count + 1))
    done < <(ip -oneline link show)
    ((count == ${2:-1})) || { echo "$count links $1*" && return 1; }
}

bridge_of_pods() {
    sed -n 's/.*"bridge": "\(.*\)".*/\1/p' /etc/cni/net.d/10-pods.conflist
}

networkd_state() {
    sed -n 's/^ADMIN_STATE=//p' "$NETWORKD_STATE/links/$1" 2>/dev/null || true
}

doctor_names_networkd() {
    local said
    said=$(doctor_says)
    [[ $said == *"systemd-networkd manages cni"* ]] || { echo "$said" && return 1; }
}

no_doctor_names_networkd() {
    local said
    said=$(doctor_says)
    [[ $said != *networkd* ]] || { echo "$said" && return 1; }
}

# Ignores the exit status, which also covers other findings.
doctor_says() {
    COLUMNS=1000 cnitool doctor || true
}
