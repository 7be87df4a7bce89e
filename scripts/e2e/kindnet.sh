# shellcheck shell=bash
# Tests pod sandboxes of containerd with conf-examples/kindnet.conflist: ptp, host-local and portmap.
# kindnet itself masquerades, so the other host has a route to the pods. Sourced by scripts/e2e.sh.

try_kindnet() {
    under "containerd, kindnet's list"
    rm -f /etc/cni/net.d/*
    # shellcheck disable=SC2154 # set where this is sourced
    cp "$here/conf-examples/kindnet.conflist" /etc/cni/net.d/10-kindnet.conflist
    outside ip route add 10.244.0.0/24 via 192.0.2.1
    outside ip route add fd00:10:244::/64 via 2001:db8::1
    start_containerd
    import_image
    check "is ready" within 20 cri info
    check "RunPodSandbox with ports" run_pod a 8080 8053
    check "RunPodSandbox without" run_pod b
    try_kindnet_traffic
    check "what pods have is seen" seen link rule file namespace process
    check "StopPodSandbox" stop_pod a
    check "its ports are closed" ports_closed
    check "the other pod goes on" answers b tcp "$(address b 4):80"
    check "RemovePodSandbox" remove_pods a b
    check "twenty sandboxes at once" twenty run_numbered
    check "each has addresses of its own" all_different
    check "each answers at its own port" twenty answers_numbered
    check "twenty are removed at once" twenty remove_numbered
    check "nothing is left" nothing_left
    check "no route is left" no_kindnet_routes
    stop_containerd
    outside ip route delete 10.244.0.0/24
    outside ip route delete fd00:10:244::/64
}

try_kindnet_traffic() {
    local a4 a6 b4
    a4=$(address a 4) a6=$(address a 6) b4=$(address b 4)
    try_port "another host" outside
    try_port "another pod" in_pod b
    try_port "the pod itself" in_pod a
    try_port "the host"
    check "127.0.0.1 leads to the port" answers a tcp 127.0.0.1:8080
    check "pod to pod, IPv4" answers a tcp "$a4:80" in_pod b
    check "pod to pod, IPv6" answers a udp "[$a6]:53" in_pod b
    check "the host to a pod, IPv4" answers b tcp "$b4:80"
    check "the host to a pod, IPv6" answers a tcp "[$a6]:80"
    check "another host to a pod, by its address" answers b tcp "$b4:80" outside
    check "a pod leaves with its own address, IPv4" seen_as "$b4" 192.0.2.2:80 in_pod b
    check "a pod leaves with its own address, IPv6" seen_as "$a6" '[2001:db8::2]:80' in_pod a
}

no_kindnet_routes() {
    local routes
    routes=$(ip -4 route && ip -6 route)
    ! grep -e 10.244 -e fd00:10:244 <<<"$routes"
}
