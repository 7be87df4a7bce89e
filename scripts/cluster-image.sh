#!/usr/bin/env bash
# Writes the image of conf-examples/kubernetes for all architectures whose archives are in a
# directory: one list of manifests, from which a node takes the image for its architecture.
#
#     scripts/cluster-image.sh DIR
#
# DIR gets cni-plugins-rust-image-vVERSION.tar, an archive in the format of OCI. To publish it:
#
#     skopeo copy --all oci-archive:DIR/cni-plugins-rust-image-vVERSION.tar docker://REGISTRY/NAME
#
# Fails if the image for amd64 or arm64 is larger than LARGEST, by default 20,000,000 bytes. The images
# with glibc are larger. Needs root and Rust. Installs buildah and jq if they are missing.

set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

readonly LARGEST=${LARGEST:-20000000}

main() {
    (($# == 1)) || die "usage: scripts/cluster-image.sh DIR"
    need_rust
    need buildah buildah
    need jq jq
    local archive directory image buildah
    directory=$(absolute "$1")
    time_of_commit
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    image=$directory/cni-plugins-rust-image-v$(version).tar
    buildah=(buildah --root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs)
    "${buildah[@]}" manifest create plugins >/dev/null
    for archive in "$directory"/cni-plugins-linux-*-v"$(version)".tgz; do
        one_architecture "$archive"
    done
    "${buildah[@]}" manifest push --quiet --all plugins "oci:$scratch/oci"
    sizes
    tar --create --directory "$scratch/oci" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner \
        --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" --file "$image" .
}

# one_architecture ARCHIVE: adds the image from ARCHIVE and the tools beside it.
one_architecture() {
    local architecture contents tools=${1##*/}
    tools=${1%/*}/${tools/plugins/plugins-tools}
    architecture=${1##*/cni-plugins-linux-}
    architecture=${architecture%-v"$(version)".tgz}
    contents=$scratch/$architecture
    mkdir "$contents"
    tar --extract --directory "$contents" --file "$1"
    tar --extract --directory "$contents" --file "$tools"
    "${buildah[@]}" build --quiet --isolation chroot --platform "linux/$architecture" \
        --tag "localhost/plugins-$architecture" --timestamp "$SOURCE_DATE_EPOCH" \
        --file "$contents/conf-examples/kubernetes/Containerfile" "$contents" >/dev/null
    # A push of the list has no option for the level of compression; it keeps compressed layers.
    "${buildah[@]}" push --quiet --compression-format gzip --compression-level 9 \
        "localhost/plugins-$architecture" "oci:$scratch/compressed:$architecture"
    "${buildah[@]}" manifest add plugins "oci:$scratch/compressed:$architecture" >/dev/null
}

# Prints the size of each image as registries transfer it.
sizes() {
    local blobs=$scratch/oci/blobs/sha256 list manifest architecture size
    list=$(jq --raw-output '.manifests[0].digest' "$scratch/oci/index.json")
    while read -r manifest architecture; do
        size=$(jq '[.config.size, .layers[].size] | add' "$blobs/${manifest#sha256:}")
        echo "image for $architecture: $size bytes"
        [[ $architecture != a*64 ]] || ((size <= LARGEST)) || die "the image for $architecture is larger than $LARGEST bytes"
    done < <(jq --raw-output '.manifests[] | "\(.digest) \(.platform.architecture)"' "$blobs/${list#sha256:}")
}

main "$@"
