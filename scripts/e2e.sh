#!/usr/bin/env bash
# Runs the plugins under common runtimes, with pods that answer. Prints a line for each check, and
# the number of checks.
#
#     scripts/e2e.sh [CASE...]
#
# By default all cases run:
#
#     containerd   pod sandboxes through its CRI socket, as the kubelet requests them; cni-agent
#     kubenet      the same with conf-examples/kubenet.conflist.template, which containerd fills in
#     kindnet      the same with conf-examples/kindnet.conflist, whose main plugin is ptp
#     switch       a node that switches from the reference to these plugins while its pods run
#     ctr          ctr run --cni
#     nerdctl      conf-examples/nerdctl.conflist with the arguments that nerdctl passes
#     podman       containers with published ports, with its CNI backend
#     rootless     the same as an ordinary user
#     firewalls    containers behind Docker, ufw, firewalld and legacy iptables, which drop
#     networkd     a systemd-networkd that manages every link, with and without the drop-in
#
# The script runs in its own network, mount and process namespaces, without this machine's /run,
# /var/lib, /etc/cni and /opt. Everything ends with them, after ten minutes at most.
# PLUGINS_UNDER_TEST=DIR uses the plugins in DIR. PROFILE=dev builds executables that are not optimized.
#
# Needs Rust and root. Installs ip, nft, containerd, runc, podman, slirp4netns, uidmap, ufw,
# firewalld, D-Bus, systemd-networkd, the reference (Debian's containernetworking-plugins) and
# iptables, which it runs, if they are missing. On a machine with systemd, installing containerd
# starts it; firewalld is masked first.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"

readonly SECONDS_AT_MOST=600
readonly CASES=(containerd kubenet kindnet switch ctr nerdctl podman rootless firewalls networkd)

main() {
    local cases=("$@") case
    ((${#cases[@]} > 0)) || cases=("${CASES[@]}")
    for case in "${cases[@]}"; do
        [[ " ${CASES[*]} " == *" $case "* ]] || die "unknown case $case"
    done
    ((EUID == 0)) || die "run this as root: containers are made"
    need_rust
    need ip iproute2
    need nft nftables
    need unshare util-linux
    need containerd containerd
    need runc runc
    # podman's package contains a network that would affect other runtimes on this machine.
    need podman podman -o 'DPkg::Options::=--path-exclude=/etc/cni/*'
    need slirp4netns slirp4netns
    need newuidmap uidmap
    need ufw ufw
    need dbus-daemon dbus-daemon
    need_firewalld
    need /usr/lib/cni/firewall containernetworking-plugins
    need iptables-legacy iptables
    need /lib/systemd/systemd-networkd systemd

    say "building static executables"
    local executables
    executables=$(static_executables --bins)
    (cd "$here/tests/e2e" && CARGO_TARGET_DIR="$executables/../.." static_executables --bins) >/dev/null
    PLUGINS=$(realpath "${PLUGINS_UNDER_TEST:-$executables}")
    export PLUGINS TOOLS=$executables

    say "containerd $(version containerd), runc $(version runc), podman $(version podman), Linux $(uname -r)"
    in_private_machine "$here/scripts/e2e.sh" --inside "${cases[@]}"
}

version() {
    # shellcheck disable=SC2016 # for dpkg-query to expand
    dpkg-query --show --showformat='${Version}' "$1" 2>/dev/null || echo "(not of this distribution)"
}

# Runs a command as process 1 of new namespaces in a new control group. All processes inside end
# with it, and with this script.
in_private_machine() {
    local group
    group=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET) ||
        die "no control groups of version 2 are mounted"
    group=$group/e2e.$$
    mkdir "$group"
    # The group becomes the root of the control groups inside, so no other process may be in it.
    # shellcheck disable=SC2016 # expanded inside
    timeout --kill-after 1 "$SECONDS_AT_MOST" \
        unshare --mount --net --pid --ipc --uts --fork --kill-child --mount-proc \
        bash -euc 'echo 0 >"$0/cgroup.procs" && exec unshare --cgroup "$@"' "$group" "$@" &
    # shellcheck disable=SC2064 # expanded now
    trap "end_machine $! '$group'" EXIT
    wait $!
}

end_machine() {
    kill "$1" 2>/dev/null || true
    wait "$1" || true
    # The group is busy until the last process has ended.
    local try
    for try in {1..50}; do
        find "$2" -depth -type d -exec rmdir {} + 2>/dev/null && return
        sleep 0.1
    done
    echo "control group $2 is left after $try tries" >&2
}

inside() {
    # shellcheck source=scripts/e2e/machine.sh
    source "$here/scripts/e2e/machine.sh"
    # shellcheck source=scripts/e2e/checks.sh
    source "$here/scripts/e2e/checks.sh"
    # shellcheck source=scripts/e2e/netns.sh
    source "$here/scripts/e2e/netns.sh"
    # shellcheck source=scripts/e2e/containerd.sh
    source "$here/scripts/e2e/containerd.sh"
    # shellcheck source=scripts/e2e/kindnet.sh
    source "$here/scripts/e2e/kindnet.sh"
    # shellcheck source=scripts/e2e/switch.sh
    source "$here/scripts/e2e/switch.sh"
    # shellcheck source=scripts/e2e/ctr.sh
    source "$here/scripts/e2e/ctr.sh"
    # shellcheck source=scripts/e2e/nerdctl.sh
    source "$here/scripts/e2e/nerdctl.sh"
    # shellcheck source=scripts/e2e/podman.sh
    source "$here/scripts/e2e/podman.sh"
    # shellcheck source=scripts/e2e/rootless.sh
    source "$here/scripts/e2e/rootless.sh"
    # shellcheck source=scripts/e2e/firewalls.sh
    source "$here/scripts/e2e/firewalls.sh"
    # shellcheck source=scripts/e2e/networkd.sh
    source "$here/scripts/e2e/networkd.sh"
    trap report EXIT
    furnish
    local case
    for case in "$@"; do
        "try_$case"
        clear_network
    done
}

if [[ ${1:-} == --inside ]]; then
    inside "${@:2}"
else
    main "$@"
fi
