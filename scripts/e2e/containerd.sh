# shellcheck shell=bash
# Tests pod sandboxes of containerd, as the kubelet requests them. Sourced by scripts/e2e.sh.

try_containerd() {
    local version
    for version in 0.3.1 1.0.0; do
        under "containerd, conflist $version"
        write_conflist "$version"
        start_containerd
        import_image
        check "is ready" within 20 cri info
        try_example
        try_pods
        try_many
        try_timeout
        try_restart
        try_agent
        stop_containerd
    done
}

# The pod of crates/under-a-runtime.md.
try_example() {
    check "RunPodSandbox of conf-examples/containerd/pod.json" run_example
    check "its TCP port" within 5 answers hello tcp 192.0.2.1:8080 outside
    check "its UDP port" within 5 answers hello udp 192.0.2.1:8053 outside
    check "RemovePodSandbox" remove_pods hello
}

run_example() {
    # shellcheck disable=SC2154 # set where this is sourced
    cri runp "$here/conf-examples/containerd/pod.json" >"$ROOM/pod.hello"
}

# Tests ports of both protocols and limits of both directions, from all sides.
try_pods() {
    check "RunPodSandbox with ports and limits" run_pod a 8080 8053 10M
    check "RunPodSandbox without" run_pod b
    local a4 a6 b4
    a4=$(address a 4) a6=$(address a 6) b4=$(address b 4)
    try_port "another host" outside
    try_port "another pod" in_pod b
    try_port "the pod itself" in_pod a
    try_port "the host"
    check "127.0.0.1 leads to the port" answers a tcp 127.0.0.1:8080
    check "pod to pod, IPv4" answers a tcp "$a4:80" in_pod b
    check "pod to pod, IPv6" answers a udp "[$a6]:53" in_pod b
    check "the limited pod to the other" answers b udp "$b4:53" in_pod a
    check "pods leave as the host, IPv4" seen_as 192.0.2.1 192.0.2.2:80 in_pod b
    check "pods leave as the host, IPv6" seen_as 2001:db8::1 '[2001:db8::2]:80' in_pod b
    check "what it receives is limited to 10 Mbit/s" limited 10 192.0.2.2:80 in_pod a
    check "what it sends is limited to 10 Mbit/s" limited 10 192.0.2.1:8080 outside
    check "what pods have is seen" seen link qdisc rule file namespace process
    check "StopPodSandbox" stop_pod a
    check "its ports are closed" ports_closed
    check "the other pod goes on" answers b tcp "$b4:80"
    check "StopPodSandbox again, as the kubelet does" stop_pod a
    check "RemovePodSandbox" remove_pods a b
    check "nothing is left" nothing_left
}

# try_port WHO [COMMAND...]
try_port() {
    check "TCP port of the host from $1" both_families tcp 8080 "${@:2}"
    check "UDP port of the host from $1" both_families udp 8053 "${@:2}"
}

both_families() {
    answers a "$1" "192.0.2.1:$2" "${@:3}"
    answers a "$1" "[2001:db8::1]:$2" "${@:3}"
}

ports_closed() {
    refused tcp 192.0.2.1:8080 outside
    refused udp 192.0.2.1:8053 outside
    refused tcp '[2001:db8::1]:8080'
}

try_many() {
    check "twenty sandboxes at once" twenty run_numbered
    check "each has addresses of its own" all_different
    check "each answers at its own port" twenty answers_numbered
    check "twenty are removed at once" twenty remove_numbered
    check "nothing is left of twenty" nothing_left
}

run_numbered() { run_pod "n$1" $((9000 + $1)) $((9000 + $1)); }
answers_numbered() { answers "n$1" tcp "192.0.2.1:$((9000 + $1))" outside; }
remove_numbered() { remove_pods "n$1"; }

twenty() {
    local number processes=() failures=0
    for number in {1..20}; do
        "$1" "$number" &
        processes+=($!)
    done
    for number in "${processes[@]}"; do
        wait "$number" || failures=$((failures + 1))
    done
    ((failures == 0)) || { echo "$failures of 20 failed" && return 1; }
}

all_different() {
    local number addresses
    addresses=$(for number in {1..20}; do address "n$number" 4 && address "n$number" 6; done)
    (($(sort --unique <<<"$addresses" | wc -l) == 40))
}

# Tests a time-out: while another process holds the lock on the leases, the kubelet gives up a
# request and repeats it later.
try_timeout() {
    local lock=/var/lib/cni/networks/pods/lock
    flock "$lock" sleep 5 &
    local holder=$!
    check "a request that takes too long is given up" given_up
    wait "$holder" || true
    check "the next request works" run_again
    check "its port leads to the new sandbox" within 5 answers late tcp 192.0.2.1:8081 outside
    check "one sandbox has one lease of each family" leases 2
    check "RemovePodSandbox after both" remove_pods late
    check "nothing is left of either" nothing_left
}

given_up() {
    local said
    ! said=$(timeout=2 run_pod late 8081 8054 2>&1)
    [[ $said == *@(Timeout expired|DeadlineExceeded)* ]] || { echo "$said" && return 1; }
}

run_again() {
    attempt=1 run_pod late 8081 8054 10M
}

leases() {
    local found
    found=$(find /var/lib/cni/networks/pods -maxdepth 1 -name '[0-9a-f]*[.:]*')
    (($(grep -c . <<<"$found" || true) == $1)) || { echo "$found" && return 1; }
}

try_restart() {
    check "a pod before containerd restarts" run_pod old 8082 8055 10M
    stop_containerd
    check "it answers without containerd" answers old tcp 192.0.2.1:8082 outside
    start_containerd
    check "containerd is back" within 20 cri info
    check "the pod answers" answers old udp 192.0.2.1:8055 outside
    check "a new pod reaches it" run_pod new
    check "by its address" answers old tcp "$(address old 4):80" in_pod new
    check "both are removed" remove_pods old new
    check "nothing is left after a restart" nothing_left
}

# Tests cni-agent: containerd is killed in the middle of an ADD, and the sandbox is lost.
try_agent() {
    local before
    check "a pod beside cni-agent" run_pod live 8083 8056 10M
    before=$(left | sort)
    echo '{"gc": {}}' >"$ROOM/agent.json"
    lose_pod
    check "a killed ADD leaves its lease and more" leases 4
    check "cni-agent keeps what containerd lists" keeps_listed
    forget_pod
    cni-agent --config "$ROOM/agent.json" 2>"$ROOM/agent.log" &
    local agent=$!
    check "cni-agent removes all of that" within 20 only_left "$before"
    kill "$agent"
    wait "$agent" || true
    check "the pod keeps its port" answers live tcp 192.0.2.1:8083 outside
    check "and its limit" limited 10 192.0.2.1:8083 outside
    check "a new pod gets the lost pod's ports" run_pod new 8084 8057
    check "RemovePodSandbox beside cni-agent" remove_pods live new
    check "nothing is left after cni-agent" nothing_left
}

# Kills containerd while the last plugin of an ADD works, then deletes the sandbox, as a crash of the
# node does. The leases become an hour old.
lose_pod() {
    local plugin=/opt/cni/bin/bandwidth namespaces=(/run/netns/*) namespace
    mv "$plugin" "$ROOM/bandwidth"
    # shellcheck disable=SC2016 # for the script to expand
    printf '#!/bin/sh\necho $$ >%s/plugin\nexec sleep 60\n' "$ROOM" >"$plugin"
    chmod +x "$plugin"
    run_pod lost 8084 8057 10M >"$ROOM/lost.log" 2>&1 &
    local runs=$!
    within 20 test -s "$ROOM/plugin"
    kill -KILL "$containerd_process"
    kill -KILL "$(<"$ROOM/plugin")"
    wait "$containerd_process" "$runs" || true
    mv "$ROOM/bandwidth" "$plugin"
    rm "$ROOM/plugin"
    for namespace in /run/netns/*; do
        [[ " ${namespaces[*]} " == *" $namespace "* ]] || ip netns delete "${namespace##*/}"
    done
    find /var/lib/cni/networks/pods -maxdepth 1 -name '[0-9a-f]*[.:]*' -exec touch -d '1 hour ago' {} +
    start_containerd
    within 20 cri info >/dev/null
}

keeps_listed() {
    local said
    said=$(cni-agent --config "$ROOM/agent.json" --dry-run)
    [[ $said == *"a container runtime lists its sandbox"* && $said != *remove* ]] || { echo "$said" && return 1; }
}

# Deletes the lost sandbox from containerd's database. containerd's loopback network has no file in
# the configuration directory, so cni-agent does not know its cached result.
forget_pod() {
    local lost
    lost=$(ctr --namespace k8s.io containers list --quiet | grep -vxF "$(<"$ROOM/pod.live")")
    ctr --namespace k8s.io containers delete "$lost"
    rm "/var/lib/cni/results/cni-loopback-$lost-lo"
    stop_containerd
    start_containerd
    within 20 cri info >/dev/null
}

only_left() {
    diff <(left | sort) <(echo "$1") || { cat "$ROOM/agent.log" && return 1; }
}

# Passes the node's pod CIDRs to the configuration through the kubelet's call, containerd and the
# template.
try_kubenet() {
    under "containerd, kubenet's template"
    rm -f /etc/cni/net.d/*
    # shellcheck disable=SC2154 # set where this is sourced
    start_containerd "conf_template = \"$here/conf-examples/kubenet.conflist.template\""
    import_image
    check "is not ready before it knows the node's CIDRs" not_ready
    check "is told the node's CIDRs" cri update-runtime-config --pod-cidr 10.4.0.0/24,fd00:4::/64
    check "is ready" within 20 cri info
    try_pods
    stop_containerd
}

not_ready() {
    local said
    ! said=$(cri info 2>&1) || { echo "$said" && return 1; }
    [[ $said == *"no NetworkReady"* ]] || { echo "$said" && return 1; }
}

# write_conflist VERSION
write_conflist() {
    rm -f /etc/cni/net.d/*
    # shellcheck disable=SC2154 # set where this is sourced
    sed "s/\"cniVersion\": .*/\"cniVersion\": \"$1\",/" "$here/conf-examples/pods.conflist" \
        >/etc/cni/net.d/10-pods.conflist
}

# start_containerd [KEY = VALUE]: starts it with the example's configuration and this key in its CNI
# section. It disables limits other than the network's, since this machine may be a container with
# older control groups.
start_containerd() {
    sed -e '/sandbox_image/a restrict_oom_score_adj = true\ndisable_apparmor = true\ndisable_cgroup = true' \
        -e "/conf_dir/a ${1:-# no more}" "$here/conf-examples/containerd/config.toml" >"$ROOM/containerd.toml"
    containerd --config "$ROOM/containerd.toml" >>"$ROOM/containerd.log" 2>&1 &
    containerd_process=$!
    within 20 ctr version >/dev/null || { tail "$ROOM/containerd.log" && die "containerd does not start"; }
}

stop_containerd() {
    kill "$containerd_process"
    wait "$containerd_process" || true
}

import_image() {
    ctr --namespace k8s.io images import "$ROOM/image.tar" >/dev/null
}

# run_pod NAME [TCP UDP [RATE]]: runs a pod with these host ports and this limit in both directions.
run_pod() {
    local ports='' limits=''
    [[ -z ${2:-} ]] || ports="{\"protocol\": 0, \"container_port\": 80, \"host_port\": $2},
        {\"protocol\": 1, \"container_port\": 53, \"host_port\": $3}"
    [[ -z ${4:-} ]] || limits="\"kubernetes.io/ingress-bandwidth\": \"$4\",
        \"kubernetes.io/egress-bandwidth\": \"$4\""
    cri --timeout "${timeout:-60}" runp - >"$ROOM/pod.$1" <<JSON
{"metadata": {"name": "$1", "uid": "$1", "namespace": "e2e", "attempt": ${attempt:-0}}, "hostname": "$1",
 "port_mappings": [$ports], "annotations": {$limits}, "linux": {}}
JSON
}

stop_pod() {
    cri stopp "$(<"$ROOM/pod.$1")"
}

remove_pods() {
    local pod
    for pod in "$@"; do
        stop_pod "$pod"
        cri rmp "$(<"$ROOM/pod.$pod")"
    done
}

# address NAME 4|6
address() {
    local mark=.
    [[ $2 == 4 ]] || mark=:
    cri inspectp "$(<"$ROOM/pod.$1")" | sed -n 's/^ *"ip": "\(.*\)".*/\1/p' | grep -F "$mark"
}

# in_pod NAME COMMAND...
in_pod() {
    local namespace
    namespace=$(cri inspectp "$(<"$ROOM/pod.$1")" | sed -n 's/^ *"path": "\(.*netns.*\)".*/\1/p')
    nsenter --net="$namespace" -- "${@:2}"
}
