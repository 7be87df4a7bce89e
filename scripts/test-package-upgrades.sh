#!/usr/bin/env bash
# Upgrades, downgrades and removes the packages of a release while a sandbox runs. The other package is
# a former version of the same one, or one of the packages of the reference: containernetworking-plugins
# and kubernetes-cni.
#
#     scripts/test-package-upgrades.sh DIR
#
# DIR has the .deb and the .rpm for this machine. The script works in a Debian of its own, in a
# temporary directory with a private network; rpm has a database there. After each step, the sandbox
# has its network, and its lease, the configuration and the links of enabled services are unchanged.
# After a removal, the file system has the same files as before the installation.
#
# Needs root and Debian's archive (80 MB). Takes about two minutes. Installs debootstrap and rpm if they
# are missing.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"

main() {
    (($# >= 1)) || die "usage: scripts/test-package-upgrades.sh DIR"
    if [[ $1 == --inside ]]; then
        inside "$2"
        return
    fi
    ((EUID == 0)) || die "this needs root: sudo scripts/test-package-upgrades.sh"
    need debootstrap debootstrap
    need rpm rpm
    local room
    room=$(mktemp -d)
    # shellcheck disable=SC2064 # the directory of now
    trap "rm -rf '$room'" EXIT
    chmod 755 "$room"
    say "making a Debian"
    debootstrap --variant=minbase --include=systemd,containernetworking-plugins,iproute2,iputils-ping \
        bookworm "$room/root" >"$room/log" 2>&1 || { tail "$room/log" >&2 && die "debootstrap failed"; }
    mkdir "$room/root/packages"
    cp "$1"/cni-plugins-rust_*_"$(architecture)".deb "$room/root/packages/ours.deb"
    cp "$1"/cni-plugins-rust-*."$(uname -m)".rpm "$room/root/packages/ours.rpm"
    dpkg-deb --extract "$room/root/packages/ours.deb" "$room/ours"
    former_packages "$room"
    kubernetes_cni_packages "$room"
    configuration "$room/root"
    in_private_network "$here/scripts/test-package-upgrades.sh" --inside "$room"
    say "all packages can be upgraded, downgraded and removed"
}

# The former version has other bytes in each executable, and a plugin that the version of now lacks.
former_packages() {
    local executable tree=$1/former
    cp --archive "$1/ours" "$tree"
    for executable in "$tree"/opt/cni/bin/*; do
        echo former >>"$executable"
    done
    cp "$tree/opt/cni/bin/bridge" "$tree/opt/cni/bin/former"
    package deb former <<EOF
name: cni-plugins-rust
version: 1.9.0
$(scripts_of post{inst,rm} prerm)
contents: [{src: $tree, dst: /, type: tree}]
EOF
    package rpm former <<EOF
name: cni-plugins-rust
version: 1.9.0
$(scripts_of post{,un} preun)
contents: [{src: $tree, dst: /, type: tree}]
EOF
}

scripts_of() {
    local directory=$here/scripts/package
    echo "scripts: {postinstall: $directory/$1.sh, postremove: $directory/$2.sh, preremove: $directory/$3.sh}"
}

# The packages of Kubernetes have all executables of the reference, here Debian's, and here one that no
# suite has. For rpm, there is also one like Fedora's, in the directory of Fedora.
kubernetes_cni_packages() {
    local tree=$1/kubernetes-cni packager
    mkdir -p "$tree"/{opt/cni,etc/cni/net.d,usr/share/doc/kubernetes-cni}
    cp --archive "$1/root/usr/lib/cni" "$tree/opt/cni/bin"
    cp "$tree/opt/cni/bin/bridge" "$tree/opt/cni/bin/stranger"
    echo readme | tee "$tree/opt/cni/bin/"{LICENSE,README.md} >"$tree/usr/share/doc/kubernetes-cni/README.md"
    touch "$tree/etc/cni/net.d/.kubernetes-cni-keep"
    for packager in deb rpm; do
        package "$packager" kubernetes-cni <<EOF
name: kubernetes-cni
version: 1.1.1
contents: [{src: $tree, dst: /, type: tree}]
EOF
    done
    package rpm distribution <<EOF
name: containernetworking-plugins
version: 1.1.1
contents: [{src: $1/root/usr/lib/cni, dst: /usr/libexec/cni, type: tree}]
EOF
}

# package PACKAGER NAME: writes a package by nfpm, from its description in the input.
package() {
    local description=$room/$2.yaml
    cat - <(
        cat <<EOF
arch: $(architecture)
release: 1
maintainer: others <others@localhost>
description: stands for another package
EOF
    ) >"$description"
    "$(nfpm)" package --config "$description" --packager "$1" --target "$room/root/packages/$2.$1" >/dev/null
}

# What an operator has.
configuration() {
    mkdir -p "$1/etc/cni/net.d"
    cat >"$1/etc/cni/net.d/10-pods.conflist" <<'EOF'
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
    echo '{}' >"$1/etc/cni/agent.json"
}

inside() {
    room=$1
    root=$room/root
    local directory
    for directory in dev proc sys; do
        mount --rbind "/$directory" "$root/$directory"
    done
    mount -t sysfs sys "$root/sys"
    mount -t tmpfs run "$root/run"
    cp "$room/ours/opt/cni/bin/cnitool" "$root/packages"
    # apt and rpm make these at their first run.
    dpkg_of_root --audit
    rpm --root "$root" --query --all
    inside_debian apt-get check -qq
    files >"$room/empty"

    from_the_distribution deb /usr/lib/cni
    between_versions deb
    from_kubernetes_cni
    install_package distribution.rpm
    files >"$room/empty"
    from_the_distribution rpm /usr/libexec/cni
    between_versions rpm
    kubernetes_cni_refused
}

# from_the_distribution PACKAGER DIRECTORY: the reference's own directory stays as it is.
from_the_distribution() {
    say "$1: beside containernetworking-plugins"
    attach "$2"
    install_package "ours.$1"
    reaches
    verified "$1" containernetworking-plugins
    detach /opt/cni/bin
    attach /opt/cni/bin
    remove_package "$1" cni-plugins-rust
    reaches
    verified "$1" containernetworking-plugins
    same_files
    detach "$2"
}

# between_versions PACKAGER: upgrades, downgrades and removes. Services that are enabled stay so until
# the end.
between_versions() {
    say "$1: upgrade and downgrade"
    install_package "former.$1"
    files >"$room/former-files"
    local units=("$room"/ours/usr/lib/systemd/system/*)
    inside_debian systemctl enable --quiet "${units[@]##*/}"
    attach /opt/cni/bin
    install_package "ours.$1"
    reaches
    verified "$1" cni-plugins-rust
    diff <(ls "$room/ours/opt/cni/bin") <(ls "$root/opt/cni/bin")
    cmp "$room/ours/opt/cni/bin/bridge" "$root/opt/cni/bin/bridge"
    check_and_detach
    attach /opt/cni/bin
    install_package "former.$1"
    reaches
    verified "$1" cni-plugins-rust
    diff <(ls "$room/former/opt/cni/bin") <(ls "$root/opt/cni/bin")
    check_and_detach
    install_package "ours.$1"
    [[ -L $root/etc/systemd/system/multi-user.target.wants/cni-agent.service ]]
    remove_package "$1" cni-plugins-rust
    same_files
}

# The .deb takes over the executables that it has, and leaves the others.
from_kubernetes_cni() {
    say "deb: over kubernetes-cni"
    install_package kubernetes-cni.deb
    files >"$room/kubernetes-files"
    attach /opt/cni/bin
    install_package ours.deb
    reaches
    cmp "$room/ours/opt/cni/bin/bridge" "$root/opt/cni/bin/bridge"
    cmp "$room/kubernetes-cni/opt/cni/bin/stranger" "$root/opt/cni/bin/stranger"
    check_and_detach
    attach /opt/cni/bin
    remove_package deb cni-plugins-rust
    reaches
    install_package kubernetes-cni.deb
    diff "$room/kubernetes-files" <(files)
    detach /opt/cni/bin
    install_package ours.deb
    remove_package deb kubernetes-cni
    diff <(ls "$room/ours/opt/cni/bin") <(ls "$root/opt/cni/bin")
    remove_package deb cni-plugins-rust
    same_files
}

# rpm cannot share files: one of the two has to be removed first.
kubernetes_cni_refused() {
    say "rpm: in place of kubernetes-cni"
    install_package kubernetes-cni.rpm
    attach /opt/cni/bin
    rpm --root "$root" --upgrade "$root/packages/ours.rpm" 2>"$room/conflict" &&
        die "the RPM is installed over kubernetes-cni"
    grep -F "kubernetes-cni conflicts with cni-plugins-rust" "$room/conflict"
    remove_package rpm kubernetes-cni
    install_package ours.rpm
    reaches
    check_and_detach
    attach /opt/cni/bin
    remove_package rpm cni-plugins-rust
    install_package kubernetes-cni.rpm
    detach /opt/cni/bin
    remove_package rpm kubernetes-cni
    same_files
}

# install_package FILE: installs, upgrades or downgrades.
install_package() {
    settings etc var/lib/cni >"$room/settings"
    case $1 in
        *.deb) inside_debian apt-get install -qq -y --allow-downgrades --reinstall "/packages/$1" ;;
        *.rpm) rpm --root "$root" --upgrade --nodeps --oldpackage "$root/packages/$1" ;;
    esac >"$room/log" 2>&1 || { cat "$room/log" >&2 && die "$1 cannot be installed"; }
    diff "$room/settings" <(settings etc var/lib/cni)
}

# remove_package PACKAGER NAME
remove_package() {
    settings var/lib/cni >"$room/settings"
    case $1 in
        deb) inside_debian apt-get purge -qq -y "$2" ;;
        rpm) rpm --root "$root" --erase --nodeps "$2" ;;
    esac >"$room/log" 2>&1 || { cat "$room/log" >&2 && die "$2 cannot be removed"; }
    diff "$room/settings" <(settings var/lib/cni)
}

verified() {
    case $1 in
        deb) [[ -z $(dpkg_of_root --verify "$2") ]] ;;
        rpm) rpm --root "$root" --verify --nodeps "$2" ;;
    esac || die "files of $2 changed"
}

dpkg_of_root() {
    inside_debian dpkg "$@"
}

inside_debian() {
    chroot "$root" env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
        DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}

# settings DIRECTORY...: prints what no package may change: configuration, links of services,
# alternatives, leases.
settings() {
    (cd "$root" && find "$@" ! -name .kubernetes-cni-keep \
        \( -type l -printf '%p -> %l\n' -o -type f -exec sha256sum {} + \) | sort)
}

# Prints all files with their checksums, but not those in which package managers and plugins keep
# state. Directories do not count: dpkg and rpm differ in which empty ones they keep.
files() {
    (cd "$root" && find . -xdev \( -path ./packages -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o \
        -path ./root/.rpmdb -o -path ./var/lib/apt -o -path ./var/lib/cni -o -path ./var/log -o \
        -path ./var/cache -o -path ./tmp \) -prune -o -type l -printf '%p -> %l\n' \
        -o -type f -printf '%m %p\n' -exec sha256sum {} + | sort)
}

same_files() {
    diff "$room/empty" <(files) || die "a removed package left or took files"
}

# attach DIRECTORY: attaches a sandbox by the plugins in DIRECTORY.
attach() {
    inside_debian ip netns add pod
    cni "$1" add >/dev/null
    reaches
}

reaches() {
    inside_debian nsenter --net=/run/netns/pod ping -c 1 -W 2 -q 10.88.0.1 >/dev/null || die "the sandbox lost its network"
}

check_and_detach() {
    cni /opt/cni/bin check
    detach /opt/cni/bin
}

# detach DIRECTORY: detaches the sandbox by the plugins in DIRECTORY. Its lease is free again.
detach() {
    cni "$1" del
    inside_debian ip netns del pod
    [[ -z $(find "$root/var/lib/cni/networks/pods" -name '10.*') ]] || die "a lease is left"
    inside_debian ip link del cni0
}

cni() {
    inside_debian env CNI_PATH="$1" NETCONFPATH=/etc/cni/net.d /packages/cnitool "$2" pods /run/netns/pod
}

main "$@"
