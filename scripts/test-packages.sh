#!/usr/bin/env bash
# Packs executables like a release, installs the packages into temporary directories and runs the
# installed executables. On this machine it installs only the tools of the test.
#
# The executables are not optimized, so the test takes some minutes.
#
# Needs Rust and root. Installs what else it needs: buildah, busybox, dpkg, rpm, linters of packages,
# minisign, Ansible, and the reference (Debian's containernetworking-plugins).

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    ((EUID == 0)) || die "this needs root: sudo scripts/test-packages.sh"
    need_rust
    need busybox busybox-static
    need dpkg-deb dpkg
    need buildah buildah
    need jq jq
    need lintian lintian
    need rpm rpm
    need rpmlint rpmlint
    need /usr/lib/cni/bridge containernetworking-plugins
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    say "building"
    local target built
    target=$(static_target)
    built=$(PROFILE=dev static_executables --bins)

    say "packing"
    scripts/package.sh --packages "$built" "$scratch/once"
    (umask 077 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 scripts/package.sh --packages "$built" "$scratch/twice")
    diff --recursive "$scratch/once" "$scratch/twice"
    materials
    signed
    kubernetes_cni
    versions
    archives
    scripts/test-installers.sh "$scratch/once"
    debian_package
    rpm_package
    image
    say "all packages are as they should be"
}

# Signs the packages with a key of this run, and verifies them by the commands that
# crates/installing.md shows. A changed archive or list fails, also when it is to be signed.
signed() {
    say "checksums and signature"
    need minisign minisign
    minisign -G -W -f -p "$scratch/key.pub" -s "$scratch/key" >/dev/null
    scripts/sign.sh "$scratch/twice" | grep -F "NOT SIGNED"
    [[ ! -e $scratch/twice/SHA256SUMS.minisig ]]
    MINISIGN_KEY=$scratch/missing scripts/sign.sh "$scratch/once" && die "a key that is missing is no error"
    scripts/sign.sh "$scratch/once" >/dev/null
    touch "$scratch/once/added"
    MINISIGN_KEY=$scratch/key scripts/sign.sh "$scratch/once" </dev/null && die "an added file gets a signature"
    rm "$scratch/once/added"
    MINISIGN_KEY=$scratch/key scripts/sign.sh "$scratch/once" </dev/null
    (
        cd "$scratch/once"
        sha256sum --check --strict --quiet ./*.sha256
        sha512sum --check --strict --quiet ./*.sha512
        minisign -V -Q -p "$scratch/key.pub" -m SHA256SUMS
        sha256sum --check --strict --quiet --ignore-missing SHA256SUMS
        cd "$scratch/twice"
        cp "$scratch/once/SHA256SUMS.minisig" .
        echo >>SHA256SUMS
        minisign -V -q -p "$scratch/key.pub" -m SHA256SUMS && die "a changed list passes for signed"
        echo >>"$(echo cni-plugins-linux-*.tgz)"
        sha256sum --check --status --ignore-missing SHA256SUMS && die "a changed archive passes"
        true
    )
}

# Unpacks both archives into one directory, as an administrator does. Then runs install.sh in a
# shell with only busybox's programs.
archives() {
    say "archives"
    local contents=$scratch/contents
    mkdir "$contents" "$scratch/busybox"
    tar --extract --directory "$contents" --file "$scratch"/once/cni-plugins-linux-*.tgz
    executables_are_plugins "$contents"
    tar --extract --directory "$contents" --file "$scratch"/once/cni-plugins-tools-linux-*.tgz
    [[ $(stat --format '%U %a' "$contents/bridge") == "root 755" ]]
    notices "$contents/LICENSE"
    busybox --install -s "$scratch/busybox"
    env --ignore-environment PATH="$scratch/busybox" \
        "$scratch/busybox/sh" "$contents/install.sh" "$scratch/from-archive"
    attach_with "$scratch/from-archive"
    over_reference /usr/lib/cni
    over_reference /opt/cni/bin
}

# notices FILE: checks that FILE begins with our licence, and then lists crates of the bill of materials
# with their texts. (The bill also lists crates that features would add.)
notices() {
    local crates
    cmp --bytes="$(stat --format %s LICENSE)" LICENSE "$1"
    crates=$(sed -n 's/^  \([a-z0-9_-]* v[0-9][^:]*\): .*/\1/p' "$1")
    (($(wc -l <<<"$crates") > 100)) || die "LICENSE lists too few crates"
    diff <(comm -23 <(sort <<<"$crates") \
        <(jq --raw-output '.components[] | "\(.name) v\(.version)"' "$scratch/bill.json" | sort)) /dev/null
    grep -qF "Copyright (c) Tokio Contributors" "$1"
}

# over_reference PLACE: installs the archive over all executables of the reference in PLACE. There
# is a copy of Debian's directory, which only this function sees.
over_reference() {
    local copy=$scratch/over$1 name
    mkdir -p "$copy"
    cp --archive /usr/lib/cni/. "$copy"
    # shellcheck disable=SC2016 # expanded inside
    unshare --mount bash -euc '
        [[ -d $2 ]] || { mount -t tmpfs tmpfs /opt && mkdir -p "$2"; }
        mount --bind "$1" "$2"
        "$3/install.sh" "$2"' over_reference "$copy" "$1" "$scratch/contents"
    for name in /usr/lib/cni/*; do
        name=${name##*/}
        [[ " ${PLUGIN_EXECUTABLES[*]} " == *" $name "* ]] || cmp "/usr/lib/cni/$name" "$copy/$name"
    done
    attach_with "$copy"
}

# Checks the output of each executable: Nomad runs all executables of a plugin directory without
# arguments and takes the first version in their output.
executables_are_plugins() {
    local name version
    diff <(find "$1" -type f -perm /111 -printf '%P\n' | sort) <(printf '%s\n' "${PLUGIN_EXECUTABLES[@]}" | sort)
    version=$(version)
    for name in "${PLUGIN_EXECUTABLES[@]}"; do
        env --ignore-environment "$1/$name" 2>&1 | grep -qxF "CNI $name plugin v$version"
    done
}

# Installs the Debian package in its own root directory beside a kubernetes-cni with executables of
# the same names, and removes it again.
debian_package() {
    say "Debian package"
    local root=$scratch/debian package
    lintian --fail-on error,warning --allow-root "$scratch"/once/*.deb
    shell_in "$root"
    mkdir -p "$root/var/lib/dpkg/"{info,updates}
    touch "$root/var/lib/dpkg/status"
    for package in "$scratch"/kubernetes-cni_*.deb "$scratch"/once/*.deb; do
        dpkg --root="$root" --install "$package" >/dev/null
    done
    installed_in "$root"
    dpkg --root="$root" --install "$scratch"/kubernetes-cni_*.deb >/dev/null
    cmp "$built/bridge" "$root/opt/cni/bin/bridge"
    dpkg --root="$root" --remove cni-plugins-rust >/dev/null
    [[ $(ls "$root/opt/cni/bin") == other ]]
}

# Installs the RPM in its own root directory. It conflicts with kubernetes-cni.
rpm_package() {
    say "RPM"
    local root=$scratch/rpm rpm
    rpm=(rpm --root "$root" --nodeps)
    rpmlint --config scripts/rpmlint.toml "$scratch"/once/*.rpm
    shell_in "$root"
    "${rpm[@]}" --install "$scratch"/once/*.rpm 2>/dev/null
    "${rpm[@]}" --verify cni-plugins-rust
    installed_in "$root"
    rpm --root "$root" --install "$scratch"/kubernetes-cni-*.rpm 2>"$scratch/conflict" &&
        die "kubernetes-cni is installed over the RPM"
    grep -F "kubernetes-cni conflicts with (installed) cni-plugins-rust" "$scratch/conflict"
    "${rpm[@]}" --erase cni-plugins-rust 2>/dev/null
    [[ -z $(find "$root/opt" "$root/usr" -path "$root/*cni*") ]]
}

# shell_in ROOT: the scripts of the packages need a shell.
shell_in() {
    install -D "$(command -v busybox)" "$1/bin/sh"
}

# installed_in ROOT: compares what a package installed.
installed_in() {
    attach_with "$1/opt/cni/bin"
    local unit
    for unit in conf-examples/systemd/*.{service,socket}; do
        cmp "$unit" "$1/usr/lib/systemd/system/${unit##*/}"
    done
    diff --recursive conf-examples "$1/usr/share/doc/cni-plugins-rust/conf-examples"
    cmp "$built/$AGENT" "$1/usr/sbin/$AGENT"
}

# Compares the version of the packages with the only one there is, in Cargo.toml, and the version of
# a pre-release with what crates/installing.md shows.
versions() {
    say "versions"
    local version changed
    version=$(version)
    changed=${version/-/'~'}-1
    [[ $(dpkg-deb --field "$scratch"/once/*.deb Version) == "$changed" ]]
    [[ $(rpm -qp --queryformat '%{version}-%{release}' "$scratch"/once/*.rpm) == "$changed" ]]
    [[ $(dpkg-deb --field "$scratch"/kubernetes-cni_*.deb Version) == 2.1.0~rc.1-1 ]]
    [[ $(rpm -qp --queryformat '%{version}-%{release}' "$scratch"/kubernetes-cni-*.rpm) == 2.1.0~rc.1-1 ]]
    dpkg --compare-versions 2.1.0~rc.1-1 lt 2.1.0-1
    [[ $(rpm --eval '%{lua: print(rpm.vercmp("2.1.0~rc.1", "2.1.0"))}') == -1 ]]
}

# Checks that the bill of materials names each executable with its checksum and each crate once, and
# that the provenance names each package with its checksum.
materials() {
    say "bill of materials and provenance"
    local name sum bill=$scratch/bill.json
    scripts/sbom.sh "$target" "$built" "$bill"
    for name in "${EXECUTABLES[@]}" "$AGENT"; do
        sum=$(sha256sum "$built/$name" | cut -d' ' -f1)
        jq --exit-status --arg name "$name" --arg sum "$sum" \
            '.metadata.component.components[] | select(.name == $name) | .hashes[0].content == $sum' "$bill"
    done >/dev/null
    jq --exit-status '
        [.metadata.component, .metadata.component.components[], .components[] | ."bom-ref"]
        | length == (unique | length) and length > 100' "$bill" >/dev/null
    jq --exit-status '
        [.metadata.component, .metadata.component.components[], .components[] | ."bom-ref"] as $known
        | [.dependencies[] | .ref, .dependsOn[]] - $known == []' "$bill" >/dev/null
    ! grep -nF -e "$PWD" -e "$HOME" -e "$scratch" "$bill" || die "the bill of materials names this machine"
    scripts/provenance.sh 2026-01-02T03:04:05Z "$scratch/once"
    diff <(jq --raw-output '.subject[] | "\(.digest.sha256)  \(.name)"' "$scratch/once/provenance.json") \
        <(cd "$scratch/once" && sha256sum -- *.deb *.rpm *.tgz | sort --key 2)
    jq --exit-status --arg commit "$(git rev-parse HEAD)" \
        '.predicate.buildDefinition.resolvedDependencies[0].digest.gitCommit == $commit' \
        "$scratch/once/provenance.json" >/dev/null
    scripts/provenance.sh 2026-01-02T03:04:05Z "$scratch/once" "--arch $(architecture)" "$(architecture):$target:cc"
    jq --exit-status --arg nfpm "$NFPM" --arg arch "$(architecture)" --arg cc "$(cc --version | sed 1q)" '
        .predicate.buildDefinition | .externalParameters.options == ["--arch", $arch]
        and .internalParameters.nfpm == $nfpm and .internalParameters.linkers == [$cc]' "$scratch/once/provenance.json" >/dev/null
    [[ $(stat --format %a "$scratch/once/provenance.json") == 644 ]]
    public_addresses
}

# Checks that the provenance names the git remote without passwords and paths of this machine.
public_addresses() {
    local remote public
    git clone --quiet --no-checkout . "$scratch/clone"
    while read -r remote public; do
        git -C "$scratch/clone" remote set-url origin "$remote"
        GIT_DIR=$scratch/clone/.git GIT_WORK_TREE=$PWD scripts/provenance.sh 2026-01-02T03:04:05Z "$scratch/clone" >/dev/null
        jq --exit-status --arg public "git+$public@$(git rev-parse HEAD)" \
            '.predicate.buildDefinition.externalParameters.source == $public' \
            "$scratch/clone/provenance.json" >/dev/null || die "$remote becomes another address than $public"
    done <<'EOF'
https://example.org/plugins.git https://example.org/plugins.git
https://user:secret@example.org/plugins?token=secret https://example.org/plugins
https://secret@example.org:8443/plugins.git https://example.org:8443/plugins.git
ssh://git:secret@example.org:22/plugins.git ssh://git@example.org:22/plugins.git
git@example.org:group/plugins.git ssh://git@example.org/group/plugins.git
example.org:/srv/plugins ssh://example.org/srv/plugins
git+ssh://user:secret@example.org/plugins file:///source
user:secret@example.org:plugins file:///source
ext::command%20secret file:///source
/home/user/plugins file:///source
EOF
}

# Builds the image from an unpacked release, checks that it contains only the executables, and runs
# its installation.
image() {
    say "image"
    local buildah container directory=$scratch/from-image
    buildah=(buildah --root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs)
    "${buildah[@]}" build --quiet --isolation chroot --tag plugins \
        --file "$scratch/contents/conf-examples/kubernetes/Containerfile" "$scratch/contents" >/dev/null
    container=$("${buildah[@]}" from localhost/plugins)
    diff <(cd "$("${buildah[@]}" mount "$container")" && find . -type f -printf '%P\n' | sort) \
        <(printf 'cni/%s\n' "${EXECUTABLES[@]}" "$AGENT" | sort)
    mkdir "$directory"
    local entrypoint
    mapfile -t entrypoint < <("${buildah[@]}" inspect --format \
        '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$container" | sed '/^$/d')
    "${buildah[@]}" run --isolation chroot --volume "$directory:/opt/cni/bin" "$container" -- "${entrypoint[@]}"
    "${buildah[@]}" umount --all >/dev/null
    attach_with "$directory"
    cluster_image
}

# Checks that the image for several architectures has each of them, here one twice by another name.
cluster_image() {
    local archive list directory=$scratch/architectures
    mkdir -p "$directory/oci"
    for archive in "$scratch"/once/*.tgz; do
        cp "$archive" "$directory"
        cp "$archive" "$directory/$(basename "${archive/-"$(architecture)"-/-s390x-}")"
    done
    # The executables are not optimized.
    LARGEST=$((1 << 30)) scripts/cluster-image.sh "$directory"
    tar --extract --directory "$directory/oci" --file "$directory"/*.tar
    list=$(jq --raw-output '.manifests[0].digest' "$directory/oci/index.json")
    diff <(jq --raw-output '.manifests[].platform.architecture' "$directory/oci/blobs/sha256/${list#sha256:}" | sort) \
        <(printf '%s\n' "$(architecture)" s390x | sort)
}

# Packages a pre-release that stands for the kubernetes-cni of Kubernetes.
kubernetes_cni() {
    local name packager
    for name in bridge other; do
        echo "the reference's" >"$scratch/$name"
    done
    cat >"$scratch/kubernetes-cni.yaml" <<EOF
name: kubernetes-cni
arch: all
version: 2.1.0-rc.1
version_schema: semver
release: 1
maintainer: others <others@localhost>
description: stands for the one of Kubernetes
contents:
  - {src: $scratch/bridge, dst: /opt/cni/bin/bridge}
  - {src: $scratch/other, dst: /opt/cni/bin/other}
EOF
    for packager in deb rpm; do
        "$(nfpm)" package --config "$scratch/kubernetes-cni.yaml" --packager "$packager" \
            --target "$scratch" >/dev/null
    done
}

# attach_with DIR: attaches a sandbox with the executables in DIR.
attach_with() {
    local executable
    for executable in "${EXECUTABLES[@]}"; do
        cmp "$built/$executable" "$1/$executable"
    done
    # shellcheck disable=SC2016 # expanded inside
    CNI_PATH=$1 NETCONFPATH=$PWD/conf-examples in_private_network bash -euc '
        ip netns add pod
        "$CNI_PATH/cnitool" add ports /run/netns/pod >/run/result.json
        ip netns exec pod ping -c 1 -W 2 -q 10.80.1.1 >/dev/null
        "$CNI_PATH/cnitool" del ports /run/netns/pod'
    echo "a sandbox reached its gateway by the executables in $1"
}

main "$@"
