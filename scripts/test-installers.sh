#!/usr/bin/env bash
# Installs the archive of a release as installers of Kubernetes and others do. Each takes the
# archive from a web server on the loopback address, compares its checksum, unpacks it into an empty
# /opt/cni/bin and has to end with a pod that has a network.
#
#     scripts/test-installers.sh DIR
#
# DIR has the archives for this machine and what scripts/sign.sh adds. The script works in network
# and mount namespaces of its own; it changes nothing on this machine and uses no Internet.
#
# Needs root. Installs ansible-core, which kubespray and image-builder use, busybox and curl if they
# are missing.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"

# One function per installer. The URL of the archive is all that differs from its own.
readonly INSTALLERS=(kubespray image_builder kops salt cilium nerdctl)

main() {
    (($# == 1)) || die "usage: scripts/test-installers.sh DIR"
    ((EUID == 0)) || die "this needs root: sudo scripts/test-installers.sh"
    need ansible ansible-core
    need busybox busybox-static
    need curl curl
    local name directory
    directory=$(realpath "$1")
    archive=$(cd "$directory" && echo cni-plugins-linux-"$(architecture)"-v*.tgz)
    url=http://127.0.0.1:8080/$archive
    room=$(mktemp -d)
    trap 'rm -rf "$room"' EXIT
    tar --extract --directory "$room" --file "$directory/$archive"
    tar --extract --directory "$room" --file "$directory/${archive/plugins/plugins-tools}"

    export -f "${INSTALLERS[@]}" ansible_module attach die version_of
    export here room url archive HOME=$room
    for name in "${INSTALLERS[@]}"; do
        say "$name"
        # shellcheck disable=SC2016 # expanded inside
        in_private_network bash -euo pipefail -c '
            mount -t tmpfs tmpfs /opt
            mkdir "$room/$2"
            cd "$room/$2"
            busybox httpd -f -p 127.0.0.1:8080 -h "$1" &
            trap "kill $!" EXIT
            curl --retry 20 --retry-connrefused --retry-delay 1 -fsSo sum "$url.sha256"
            "$2"' test_installers "$directory" "$name" || die "$name cannot install $archive"
    done
    say "installed by ${INSTALLERS[*]}"
}

# The checksum is in kubespray's own list; here it comes from the file. The directory and the unpacked
# files get an owner other than root (`cni_bin_owner`, by default kube) and mode 0755, LICENSE and
# README.md, too.
kubespray() {
    ansible_module get_url "url=$url dest=$PWD/$archive checksum=sha256:$(cut -d' ' -f1 sum) mode=0755"
    ansible_module file "path=/opt/cni/bin state=directory mode=0755 owner=nobody recurse=true"
    ansible_module unarchive "src=$PWD/$archive dest=/opt/cni/bin mode=0755 owner=nobody remote_src=true"
    [[ $(stat --format %U /opt/cni/bin /opt/cni/bin/bridge | uniq) == nobody ]]
    attach
    # The pod of conf-examples/kubernetes/daemonset.yaml has one capability. Here it updates the plugins.
    setpriv --bounding-set=-all,+dac_override --inh-caps=-all "$room/cnitool" install /opt/cni/bin
    attach
}

# Ansible itself gets the file of the checksum and looks there for the name in the URL, which differs
# from the name of the download. In the end, image-builder asks host-device for its version.
image_builder() {
    ansible_module file "path=/opt/cni/bin state=directory mode=0755"
    ansible_module get_url "url=$url dest=$PWD/cni.tar.gz checksum=sha256:$url.sha256 mode=0755"
    ansible_module unarchive "src=$PWD/cni.tar.gz dest=/opt/cni/bin remote_src=true"
    attach
    [[ $(version_of host-device).tgz == "${archive##*-v}" ]]
}

# version_of PLUGIN: prints the version as image-builder's test does.
version_of() {
    sh -c "/opt/cni/bin/$1 2>&1 | awk '{print substr(\$4,2); }'" | head -n 1
}

# kops gets the URL and the checksum by two variables, and takes every executable by its name.
kops() {
    local name CNI_VERSION_URL=$url CNI_ASSET_HASH_STRING
    CNI_ASSET_HASH_STRING=sha256:$(curl -fsS "$url.sha256" | cut -f1 -d' ')
    curl -fsSo asset "$CNI_VERSION_URL"
    [[ sha256:$(sha256sum asset | cut -d' ' -f1) == "$CNI_ASSET_HASH_STRING" ]]
    mkdir -p extracted /opt/cni/bin
    tar -x -f asset -C extracted
    find extracted -type f -perm /111 -printf '%f\n' >names
    while read -r name; do
        install -m 755 "extracted/$name" "/opt/cni/bin/$name"
    done <names
    attach
}

# States of Salt name the file of SHA-512.
salt() {
    curl -fsSO "$url" -O "$url.sha512"
    sha512sum --check --strict --quiet "$archive.sha512"
    mkdir -p /opt/cni/bin
    tar -xz -f "$archive" -C /opt/cni/bin
    attach
}

# The image of Cilium takes only loopback.
cilium() {
    curl -fsSo cni.tar.gz "$url"
    tar -xf cni.tar.gz ./loopback
    [[ $(find . -type f -perm /111) == ./loopback ]]
    ./loopback 2>&1 | grep -q '^CNI loopback plugin v'
}

# nerdctl has SHA256SUMS of all archives that it bundles, and asks firewall for its version, which
# has to be 1.7.1 or later.
nerdctl() {
    local version
    curl -fsSO "$url" -O "${url%/*}/SHA256SUMS"
    sha256sum --check --strict --quiet --ignore-missing SHA256SUMS
    mkdir -p /opt/cni/bin
    tar -xz -f "$archive" -C /opt/cni/bin
    version=$(/opt/cni/bin/firewall 2>&1 | sed -nE '1s/^CNI firewall plugin v([0-9.]+).*/\1/p')
    printf '%s\n' 1.7.1 "$version" | sort --version-sort --check=quiet
    attach
}

ansible_module() {
    ansible localhost --connection local --module-name "$1" --args "$2" >ansible.log 2>&1 ||
        { cat ansible.log >&2 && false; }
}

# Attaches a pod by the executables in /opt/cni/bin.
attach() {
    ip netns add pod
    CNI_PATH=/opt/cni/bin NETCONFPATH=$here/conf-examples "$room/cnitool" add ports /run/netns/pod >result.json
    ip netns exec pod ping -c 1 -W 2 -q 10.80.1.1 >/dev/null
    CNI_PATH=/opt/cni/bin NETCONFPATH=$here/conf-examples "$room/cnitool" del ports /run/netns/pod
    ip netns delete pod
    echo "a pod reached its gateway"
}

main "$@"
