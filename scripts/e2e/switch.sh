# shellcheck shell=bash
# Tests a node that switches from the reference to these plugins while its pods run. Sourced by
# scripts/e2e.sh.

try_switch() {
    under "containerd, from the reference"
    mkdir "$ROOM/plugins"
    cp /opt/cni/bin/* "$ROOM/plugins"
    install_plugins /usr/lib/cni
    write_conflist 1.0.0
    start_containerd
    import_image
    check "its pod with ports and limits" run_pod a 8080 8053 10M
    check "its pod without" run_pod b
    install_plugins "$ROOM/plugins"
    check "its pod keeps its port" answers a tcp 192.0.2.1:8080 outside
    check "a pod of ours with ports and limits" run_pod c 8082 8055 10M
    check "it is reached at its port" answers c udp 192.0.2.1:8055 outside
    check "both reach each other" reach_each_other a c
    check "its pod is removed" remove_pods a
    check "cnitool migrate tells what is left of it" migrated gone a
    check "cnitool migrate --remove removes that" migrated removed a --remove
    check "and nothing of the pod that lives" migrated living b
    check "which leaves as the host still" seen_as 192.0.2.1 192.0.2.2:80 in_pod b
    check "the next pod has the port" run_pod d 8080 8053
    check "and is reached" answers d tcp 192.0.2.1:8080 outside
    check "all are removed" remove_pods b c d
    check "cnitool migrate --remove, at last" cnitool migrate --remove
    check "nothing is left of either" nothing_left
    check "nothing is left in iptables" no_chains
    stop_containerd
}

# install_plugins DIR: replaces each file atomically, like a package.
install_plugins() {
    local plugin
    for plugin in "${PLUGIN_EXECUTABLES[@]}"; do
        cp "$1/$plugin" /opt/cni/bin/new
        mv /opt/cni/bin/new "/opt/cni/bin/$plugin"
    done
}

reach_each_other() {
    answers "$2" tcp "$(address "$2" 4):80" in_pod "$1"
    answers "$1" udp "[$(address "$1" 6)]:53" in_pod "$2"
}

# migrated FATE POD [OPTION]: checks that `cnitool migrate` reports this state of the pod.
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
