#!/usr/bin/env bash
# Writes the image localhost/peer:1 to an archive that runtimes import, in the format of `docker
# save`. It uses no registry and no image tool.
#
#     scripts/image.sh FILE [PEER]
#
# The image contains only the program PEER, which answers at TCP port 80 and UDP port 53. Without
# PEER the script builds it from tests/e2e, which needs Rust.

set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"

main() {
    (($# == 1 || $# == 2)) || die "usage: scripts/image.sh FILE [PEER]"
    local file peer=${2:-}
    file=$(realpath "$1")
    [[ -n $peer ]] || peer=$(build)/peer
    room=$(mktemp -d)
    trap 'rm -r "$room"' EXIT
    install -m 755 "$peer" "$room/peer"
    write "$file"
}

build() {
    need_rust >&2
    cd "$here/tests/e2e"
    static_executables --bins
}

write() {
    cd "$room"
    local layer config
    tar --create --owner root:0 --group root:0 --file layer.tar peer
    layer=$(digest layer.tar)
    cat >config.json <<JSON
{"architecture": "$(architecture)", "os": "linux",
 "config": {"Entrypoint": ["/peer", "serve"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
JSON
    config=$(digest config.json).json
    mv config.json "$config"
    cat >manifest.json <<JSON
[{"Config": "$config", "RepoTags": ["localhost/peer:1"], "Layers": ["layer.tar"]}]
JSON
    tar --create --file "$1" manifest.json "$config" layer.tar
}

digest() {
    sha256sum "$1" | cut -d' ' -f1
}

main "$@"
