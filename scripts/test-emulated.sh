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

readonly MODULES=(br_netfilter bridge ifb nf_conntrack_netlink nf_tables nft_chain_nat nft_compat nft_ct
    nft_fib_inet nft_limit nft_masq nft_meta_bridge nft_nat nft_redir nft_reject_inet sch_fq_codel sch_htb sch_ingress
    sch_tbf cls_u32 cls_matchall act_mirred veth virtio_console xfrm_user)

main() {
    (($# == 2)) || die "usage: scripts/test-emulated.sh arm64|ppc64le|s390x DIR"
    local archives=("$2/cni-plugins-linux-$1"-v*.tgz "$2/cni-plugins-tools-linux-$1"-v*.tgz)
    choose_machine "$1"
    need cpio cpio
    need depmod kmod
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/cni-plugins-rust/$1
    room=$(mktemp -d)
    trap 'rm -rf "$room"' EXIT
    [[ -e $cache/vmlinuz ]] || prepare
    root_directory "${archives[@]}"

    say "booting"
    timeout "${TIMEOUT:-900}" "${machine[@]}" -smp 2 -m 1024 -nographic -no-reboot \
        -kernel "$cache/vmlinuz" -initrd "$room/initramfs" \
        -append "console=$console loglevel=4 panic=-1" </dev/null | tr -d '\r' | tee "$room/console" ||
        die "the emulated machine failed"
    grep -qx "all passed on .*" "$room/console" || die "a plugin failed on $1"
}

# choose_machine ARCH: sets QEMU's command, the console of the machine, Debian's name of the architecture
# and the name of its kernel.
choose_machine() {
    debian=$1 kernel=$1
    case $1 in
        arm64)
            need qemu-system-aarch64 qemu-system-arm
            machine=(qemu-system-aarch64 -M virt -cpu cortex-a72) console=ttyAMA0
            ;;
        ppc64le)
            need qemu-system-ppc64 qemu-system-ppc
            machine=(qemu-system-ppc64 -M pseries) console=hvc0 debian=ppc64el kernel=powerpc64le
            ;;
        s390x)
            need qemu-system-s390x qemu-system-misc
            machine=(qemu-system-s390x -M s390-ccw-virtio) console=ttysclp0
            ;;
        *) die "no emulated machine for $1" ;;
    esac
}

# Downloads and unpacks the kernel and busybox, by a configuration of apt of its own.
prepare() {
    say "downloading Debian's kernel for $debian"
    local apt=(-qq -o "APT::Architecture=$debian" -o "APT::Architectures=$debian" -o APT::Sandbox::User=root
        -o "Dir::State=$room/state" -o Dir::State::status=/dev/null -o "Dir::Cache=$room/cache")
    local image package
    mkdir -p "$room"/{state/lists,cache/archives}/partial "$room/packages" "$room/unpacked" "$cache"
    apt-get "${apt[@]}" update || say "the packages come from the lists that could be fetched"
    image=$(apt-cache "${apt[@]}" depends "linux-image-$kernel" | sed -n 's/.*Depends: //p')
    (cd "$room/packages" && apt-get "${apt[@]}" download "$image" busybox-static)
    for package in "$room"/packages/*.deb; do
        dpkg-deb --extract "$package" "$room/unpacked"
    done
    cp "$room/unpacked/bin/busybox" "$cache"
    rm -rf "${cache:?}/lib"
    cp -r "$room/unpacked/lib" "$cache"
    depmod --basedir "$cache" "${image#linux-image-}"
    cp "$room"/unpacked/boot/vmlinu[xz]-* "$cache/vmlinuz"
}

# root_directory ARCHIVE...: makes the root file system of the machine, which init fills.
root_directory() {
    local archive module modules root=$room/root
    mkdir -p "$root"/{archives,bin,dev,etc,opt/cni/bin,proc,run,sbin,sys,tmp,var/lib}
    for archive; do
        cp "$archive" "$root/archives"
    done
    cp "$cache/busybox" "$root/bin"
    mapfile -t modules < <(
        for module in "${MODULES[@]}"; do
            modprobe --dirname "$cache" --set-version "$(ls "$cache/lib/modules")" --show-depends "$module"
        done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
    )
    mkdir "$root/modules"
    for module in "${!modules[@]}"; do
        cp "${modules[module]}" "$root/modules/$(printf '%03d' "$module").ko"
    done
    install -m 755 /dev/stdin "$root/init" <<<"$INIT"
    (cd "$root" && find . -print0 | cpio --null --create --quiet --format newc) >"$room/initramfs"
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
    touch /run/netns/pod && CAP_ARGS=$ports try bridge 10.88.0.1 8080 || return
    touch /run/netns/pod && CAP_ARGS=$ports try podman 10.88.0.1 8080 || return
    touch /run/netns/pod && try bandwidth 10.90.0.1 || return
    touch /run/netns/pod && try tuning 10.93.0.1 || return
    touch /run/netns/pod && try ptp 10.89.0.1 || return
    touch /run/netns/pod && CAP_ARGS="{\"ips\":[\"10.94.0.9/24\"]}" try static 10.94.0.1 || return
    [ -z "$(find /var/lib/cni/networks -name "10.*" 2>/dev/null)" ] || return
}
if all; then echo "all passed on $(uname -m)"; else echo FAILED; cat /run/result; fi
reboot -f'

main "$@"
