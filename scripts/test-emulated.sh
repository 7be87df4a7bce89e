#!/usr/bin/env bash
# Tries the archives of a release for another architecture in an emulated machine with Debian's kernel.
# Unpacks and installs them, attaches a sandbox by each example that follows, and detaches it.
#
#     scripts/test-emulated.sh arm64|ppc64le|s390x DIR
#
# DIR has the archives. Together the examples have all plugins. The machine has no network, and its
# files are in memory; this machine's packages and package sources stay as they are.
#
# Takes some minutes. Installs QEMU, cpio and kmod if they are missing, and downloads Debian's kernel
# for the architecture and busybox (60 MB) into a cache.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"
# shellcheck source=scripts/emulated.sh
source "$here/scripts/emulated.sh"

readonly MODULES=(br_netfilter bridge nf_conntrack_netlink nf_tables nft_chain_nat nft_compat nft_ct
    nft_fib_inet nft_limit nft_masq nft_meta_bridge nft_nat nft_redir nft_reject_inet sch_fq_codel sch_htb
    sch_tbf cls_u32 veth virtio_console xfrm_user)

main() {
    (($# == 2)) || die "usage: scripts/test-emulated.sh arm64|ppc64le|s390x DIR"
    local archives=("$2/cni-plugins-linux-$1"-v*.tgz "$2/cni-plugins-tools-linux-$1"-v*.tgz)
    prepare_machine "$1"
    mkdir -p "$room"/root/{archives,opt/cni/bin,var/lib}
    cp "${archives[@]}" "$room/root/archives"
    initramfs "$room/root" "$INIT" "${MODULES[@]}"

    boot "${TIMEOUT:-900}" -m 1024
    grep -qx "all passed on .*" "$room/console" || die "a plugin failed on $1"
}

# The first process of the machine.
# shellcheck disable=SC2016 # expanded inside
readonly INIT='#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/opt/cni/bin CNI_PATH=/opt/cni/bin NETCONFPATH=/examples
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
for module in /modules/*; do insmod "$module"; done
ip link set lo up
mkdir -p /run/netns /release
for archive in /archives/*; do tar -xz -C /release -f "$archive"; done
mkdir /examples && cp /release/conf-examples/*.conflist /examples

# try EXAMPLE GATEWAY [PORT]: attaches a sandbox and pings its gateway from there. With PORT, asks a
# web server in it by this port of the host.
try() {
    unshare --net=/run/netns/pod true
    cnitool add "$1" /run/netns/pod >/run/result || return
    [ -z "$2" ] || nsenter --net=/run/netns/pod ping -c 1 -W 5 -q "$2" >/dev/null || return
    [ "$1" = loopback ] || cnitool check "$1" /run/netns/pod || return # its version has no CHECK
    if [ -n "$3" ]; then
        nsenter --net=/run/netns/pod httpd -p 80 -h /release || return
        printf "GET /LICENSE HTTP/1.0\r\n\r\n" | nc -w 20 "$2" "$3" | grep -q "Apache License" || return
        kill "$(pidof httpd)"
    fi
    cnitool del "$1" /run/netns/pod || return
    [ -z "$(nsenter --net=/run/netns/pod ip -o address show dev eth0 2>/dev/null)" ] || return
    umount /run/netns/pod && rm /run/netns/pod
    for bridge in /sys/class/net/*/bridge; do
        [ ! -e "$bridge" ] || ip link delete "$(basename "${bridge%/bridge}")"
    done
    echo "ok $1"
}

touch /run/netns/pod
all() {
    sh /release/install.sh || return
    touch /run/netns/pod && try loopback "" || return
    ports="{\"portMappings\":[{\"hostPort\":8080,\"containerPort\":80,\"protocol\":\"tcp\"}]}"
    touch /run/netns/pod && CAP_ARGS=$ports try ports 10.80.1.1 8080 || return
    touch /run/netns/pod && CAP_ARGS=$ports try podman 10.88.0.1 8080 || return
    touch /run/netns/pod && try bandwidth 10.80.6.1 || return
    touch /run/netns/pod && try tuning 10.80.9.1 || return
    touch /run/netns/pod && try ptp 10.80.3.1 || return
    touch /run/netns/pod && CAP_ARGS="{\"ips\":[\"10.80.8.9/24\"]}" try static 10.80.8.1 || return
    [ -z "$(find /var/lib/cni/networks -name "10.*" 2>/dev/null)" ] || return
}
if all; then echo "all passed on $(uname -m)"; else echo FAILED; cat /run/result; fi
reboot -f'

main "$@"
