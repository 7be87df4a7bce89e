# shellcheck shell=bash
# Tests a node that switches from the reference to these plugins while its pods run, and back.
# Sourced by scripts/e2e.sh.

try_switch() {
    mkdir "$ROOM/plugins"
    cp /opt/cni/bin/* "$ROOM/bin/cnitool" "$ROOM/plugins"
    switch_containerd
    switch_podman
    install_plugins "$ROOM/plugins"
}

switch_containerd() {
    under "containerd, from the reference"
    install_plugins /usr/lib/cni
    write_conflist 1.0.0
    start_containerd
    import_image
    check "its pod with ports and limits" run_pod a 8080 8053 10M
    check "its pod without" run_pod b
    install_plugins "$ROOM/plugins"
    check "its pod keeps its port" answers a tcp 192.0.2.1:8080 outside
    check "a pod of ours with ports and limits" run_pod c 8082 8055 10M
    check "it is reached at its port" within 5 answers c udp 192.0.2.1:8055 outside
    check "both reach each other" reach_each_other a c
    check "its pod is removed" remove_pods a
    check "cnitool migrate tells what is left of it" migrated gone a
    check "cnitool migrate --remove removes that" migrated removed a --remove
    check "and nothing of the pod that lives" migrated live b
    check "which leaves as the host still" seen_as 192.0.2.1 192.0.2.2:80 in_pod b
    check "the next pod has the port" run_pod d 8080 8053
    check "and is reached" within 5 answers d tcp 192.0.2.1:8080 outside
    check "all are removed" remove_pods b c d
    check "cnitool migrate --remove, at last" cnitool migrate --remove
    check "nothing is left of either" nothing_left
    check "nothing is left in iptables" no_chains
    stop_containerd
}

# The chain of podman's own networks, with firewall and tuning.
switch_podman() {
    under "podman, from the reference"
    install_plugins /usr/lib/cni
    configure_podman
    check "podman load" podman load --quiet --input "$ROOM/image.tar"
    check "podman network create" podman network create --ipv6 \
        --subnet 10.2.0.0/24 --subnet fd00:2::/64 pods
    check "its chain is bridge, portmap, firewall and tuning" \
        chain_is /etc/cni/net.d/pods.conflist bridge portmap firewall tuning
    check "its container with ports" run_podman web --publish 8090:80 --publish 8091:53/udp
    check "its container without" run_podman other
    try_published "by the reference"
    # shellcheck disable=SC2154 # set where this is sourced
    check "install.sh" "$here/scripts/install.sh" --from "$ROOM/plugins" /opt/cni/bin
    check "it replaced all executables" diff --recursive "$ROOM/plugins" /opt/cni/bin
    try_published "after install.sh"
    check "a container of ours with a port" run_podman new --publish 8092:80
    check "it is reached at its port" within 5 answers new tcp 192.0.2.1:8092 outside
    check "its container reaches ours" answers new tcp "$(podman_address new):80" within_podman web
    check "our container reaches its" answers other udp "[$(podman_address6 other)]:53" within_podman new
    local gone gone6
    gone=$(podman_address web) gone6=$(podman_address6 web)
    check "podman stop of its container" podman stop --time 0 web
    check "podman rm of its container" podman rm --force --time 0 web
    check "cnitool migrate --remove" cnitool migrate --remove
    check "nothing of the container is left" nothing_of "$gone" "$gone6"
    check "podman run with the same ports" run_podman web --publish 8090:80 --publish 8091:53/udp
    try_published "by ours"
    switch_podman_back
}

switch_podman_back() {
    under "podman, back to the reference"
    install_plugins /usr/lib/cni
    try_published "after the change"
    check "its container goes on" answers other tcp "$(podman_address other):80"
    check "podman rm of our containers" podman rm --force --time 0 web new
    check "cnitool gc, with our executables" env CNI_PATH="$ROOM/plugins" cnitool gc pods
    check "nothing of ours is left" no_elements
    check "its container still goes on" answers other tcp "$(podman_address other):80"
    check "podman run with the same ports" run_podman web --publish 8090:80 --publish 8091:53/udp
    try_published "by the reference"
    check "podman rm" podman rm --force --time 0 web other
    check "nothing is left of either" nothing_left
    check "nothing is left of the firewall plugin" no_firewall
}

# nothing_of ADDRESS...: checks that no rule, route or lease has the address.
nothing_of() {
    local address there
    for address in "$@"; do
        there=$(
            nft list ruleset
            ip route show table all
            ip -6 route show table all
            find /var/lib/cni/networks/pods -type f
        )
        ! grep -wF "$address" <<<"$there" || return
    done
}

no_elements() {
    local there
    there=$(nft list ruleset && find /run/cni -type f)
    ! grep -F 'cni:' <<<"$there"
}

# install_plugins DIR: replaces each file atomically, like a package.
install_plugins() {
    local plugin
    for plugin in "${PLUGIN_EXECUTABLES[@]}"; do
        # Debian's reference has no dummy.
        [[ -e $1/$plugin ]] || continue
        cp "$1/$plugin" /opt/cni/bin/new
        mv /opt/cni/bin/new "/opt/cni/bin/$plugin"
    done
}

reach_each_other() {
    answers "$2" tcp "$(address "$2" 4):80" in_pod "$1"
    answers "$1" udp "[$(address "$1" 6)]:53" in_pod "$2"
}

# migrated STATE POD [OPTION]: checks that `cnitool migrate` reports this state of the pod.
migrated() {
    local told pod
    pod=$(<"$ROOM/pod.$2")
    told=$(cnitool migrate "${@:3}")
    grep -q "^$1 .*$pod" <<<"$told" || { echo "$told" && return 1; }
}

no_chains() {
    local rules
    rules=$(iptables-save && ip6tables-save)
    ! grep CNI- <<<"$rules"
}
