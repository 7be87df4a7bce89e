#!/usr/bin/env bash
# Packs existing executables into archives with the same bytes on every machine.
#
#     scripts/package.sh [--deb] EXECUTABLES DIR
#
# The executables come from the directory EXECUTABLES. DIR gets
#
#     cni-plugins-linux-ARCH-vVERSION.tgz        the plugins, README and licence, named as the reference's
#     cni-plugins-tools-linux-ARCH-vVERSION.tgz  cnitool, cni-agent, install.sh, examples, man pages,
#                                                completions, licence
#     cni-plugins-rust_VERSION_ARCH.deb          with --deb: both
#
# All files have the time SOURCE_DATE_EPOCH, by default the time of the last commit.
# scripts/release.sh calls this script. scripts/sign.sh adds the checksums.
#
# Needs Rust. Installs dpkg for the Debian package if it is missing.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

# All plugins of the reference for Linux.
readonly REFERENCE=(bandwidth bridge dhcp dummy firewall host-device host-local ipvlan loopback macvlan
    portmap ptp sbr static tap tuning vlan vrf)

main() {
    local deb=no directories=()
    while (($# > 0)); do
        case $1 in
            --deb) deb=yes ;;
            -*) die "unknown option $1" ;;
            *) directories+=("$1") ;;
        esac
        shift
    done
    ((${#directories[@]} == 2)) || die "what, and where to? scripts/package.sh [--deb] EXECUTABLES DIR"
    need_rust
    local executables directory
    executables=$(realpath "${directories[0]}")
    mkdir -p "${directories[1]}"
    directory=$(realpath "${directories[1]}")
    export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    say "writing man pages and completions"
    cargo run --quiet --locked --package cnitool --example generate -- "$scratch/generated"
    plugins_archive "$executables" "$directory"
    tools_archive "$executables" "$directory"
    [[ $deb == no ]] || debian_package "$executables" "$directory"
}

# plugins_archive EXECUTABLES DIR: writes a flat archive like the reference's, which installers
# unpack in /opt/cni/bin. Only plugins are executable in it, because Nomad runs every executable of
# that directory.
plugins_archive() {
    local contents=$scratch/plugins
    mkdir "$contents"
    install -m 755 "${PLUGIN_EXECUTABLES[@]/#/$1/}" "$contents"
    install -m 644 LICENSE "$contents"
    readme >"$contents/README.md"
    pack "$contents" "$2" "cni-plugins-linux-$(architecture)-v$(version).tgz"
}

# An installer unpacks this archive in place of the reference's, so its README lists first what it
# lacks.
readme() {
    local missing
    missing=$(comm -23 <(printf '%s\n' "${REFERENCE[@]}" | sort) <(printf '%s\n' "${PLUGIN_EXECUTABLES[@]}" | sort))
    cat <<EOF
# CNI plugins in Rust $(version): ${#PLUGIN_EXECUTABLES[@]} plugins, NOT ALL of containernetworking/plugins

This directory has: ${PLUGIN_EXECUTABLES[*]}.

It does NOT have: ${missing//$'\n'/ }.
A network that names one of these needs the executable of containernetworking/plugins beside these.

To see the version of a plugin, run it without arguments. \`cnitool doctor\`, in the archive
cni-plugins-tools, reports networks whose plugins are missing on a node.
EOF
}

# tools_archive EXECUTABLES DIR
tools_archive() {
    local contents=$scratch/tools
    mkdir "$contents"
    install -m 755 "$1/cnitool" "$1/$AGENT" scripts/install.sh "$contents"
    install -m 644 LICENSE "$contents"
    cp -r conf-examples "$scratch"/generated/* "$contents"
    pack "$contents" "$2" "cni-plugins-tools-linux-$(architecture)-v$(version).tgz"
}

# pack CONTENTS DIR NAME: writes an archive without an entry for the top directory. Such an entry
# would change the owner of the directory in which an administrator unpacks it. Names begin with "./"
# as in the reference's archive: some installers unpack single members, such as ./loopback.
pack() {
    (cd "$1" && LC_ALL=C && printf './%s\0' *) |
        tar --create --directory "$1" --null --files-from=- --sort=name --format=gnu \
            --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" |
        gzip --no-name --best >"$2/$3"
}

# debian_package EXECUTABLES DIR: writes a package for /opt/cni/bin, the default of containerd and
# CRI-O. Debian's own containernetworking-plugins in /usr/lib/cni stay unchanged.
debian_package() {
    need dpkg-deb dpkg
    local package root=$scratch/debian documents=usr/share/doc/cni-plugins-rust
    package=cni-plugins-rust_$(debian_version)_$(architecture).deb
    install -D -m 755 -t "$root/opt/cni/bin" "${EXECUTABLES[@]/#/$1/}"
    install -D -m 755 -t "$root/usr/sbin" "$1/$AGENT"
    install -D -m 644 -t "$root/usr/lib/systemd/system" conf-examples/systemd/*.service
    install -D -m 644 -t "$root/$documents" README.md
    install -m 644 LICENSE "$root/$documents/copyright"
    cp -r conf-examples "$root/$documents"
    install -D -m 644 -t "$root/usr/share/man/man8" "$scratch"/generated/man/*
    gzip --no-name --best "$root"/usr/share/man/man8/*
    local completions=$scratch/generated/completions
    install -D -m 644 "$completions/cnitool.bash" "$root/usr/share/bash-completion/completions/cnitool"
    install -D -m 644 -t "$root/usr/share/zsh/vendor-completions" "$completions/_cnitool"
    install -D -m 644 -t "$root/usr/share/fish/vendor_completions.d" "$completions/cnitool.fish"
    mkdir "$root/DEBIAN"
    control >"$root/DEBIAN/control"
    chmod -R u=rwX,go=rX "$root"
    dpkg-deb --root-owner-group --build "$root" "$2/$package" >/dev/null
}

# The package kubernetes-cni contains the reference's executables with these names, and others,
# which stay.
control() {
    cat <<EOF
Package: cni-plugins-rust
Version: $(debian_version)
Architecture: $(architecture)
Maintainer: the authors of cni-plugins-rust
Section: net
Priority: optional
Replaces: kubernetes-cni
Description: network of containers: CNI plugins in Rust
 Plugins that replace those of containernetworking/plugins, and cnitool:
 ${PLUGIN_EXECUTABLES[*]}. They are linked statically.
 An optional agent, cni-agent, offers devices to the kubelet, removes what dead
 sandboxes left, restores rules and serves metrics.
EOF
}

version() {
    cargo pkgid --package cnitool | sed 's/.*[#@]//'
}

# Converts the version: Debian sorts 2.1.0~rc.1 before 2.1.0, as Semantic Versioning sorts
# 2.1.0-rc.1.
debian_version() {
    version | tr - '~'
}

main "$@"
