# shellcheck shell=bash
# Tests containers of `ctr run --cni`, which has no ports and calls DEL without a namespace. Sourced
# by scripts/e2e.sh.

try_ctr() {
    under ctr
    write_conflist 1.0.0
    start_containerd
    ctr images import "$ROOM/image.tar" >/dev/null
    local containers=()
    run_container one
    run_container two
    check "both run" within 20 both_run
    local one two
    one=$(container_address one) two=$(container_address two)
    check "the host reaches a container" answers one tcp "$one:80"
    check "a container reaches the other, IPv4" answers two udp "$two:53" in_container one
    check "a container leaves as the host" seen_as 192.0.2.1 192.0.2.2:80 in_container one
    check "what they have is seen" seen link rule file process
    check "a container ends" ctr task kill --signal KILL one
    wait "${containers[0]}" || true
    check "the other goes on" answers two tcp "$two:80"
    check "the other ends" ctr task kill --signal KILL two
    wait "${containers[1]}" || true
    check "nothing is left" nothing_left
    stop_containerd
}

# Runs a container in the background; ctr removes it when it ends. CPU shares need a controller that
# may be absent, so they are 0.
run_container() {
    ctr run --rm --cni --cpu-shares 0 "$IMAGE" "$1" /peer serve "$1" >>"$ROOM/ctr.log" 2>&1 &
    containers+=($!)
}

both_run() {
    [[ -n $(container_address one) && -n $(container_address two) ]]
    answers one tcp "$(container_address one):80"
    answers two tcp "$(container_address two):80"
}

container_address() {
    in_container "$1" ip -4 -oneline address show dev eth0 | awk '{ sub("/.*", "", $4); print $4 }'
}

# in_container NAME COMMAND...
in_container() {
    local process
    process=$(ctr task list | awk -v name="$1" '$1 == name { print $2 }')
    [[ -n $process ]] || return 1
    nsenter --net --target "$process" -- "${@:2}"
}
