# shellcheck shell=bash
# The image of all containers: one program that answers. No registry is asked, and no tool for images.
# Sourced by scripts/e2e.sh.

readonly IMAGE=localhost/peer:1

# image FILE: an archive as `docker save` writes it, of that program alone.
image() {
    local dir architecture layer config
    dir=$(mktemp -d -p "$ROOM")
    case $(uname -m) in
        x86_64) architecture=amd64 ;;
        aarch64) architecture=arm64 ;;
        *) architecture=$(uname -m) ;;
    esac
    tar --create --file "$dir/layer.tar" --directory "$ROOM/bin" peer
    layer=$(digest "$dir/layer.tar")
    cat >"$dir/config.json" <<JSON
{"architecture": "$architecture", "os": "linux",
 "config": {"Entrypoint": ["/peer", "serve"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
JSON
    config=$(digest "$dir/config.json")
    mv "$dir/config.json" "$dir/$config.json"
    cat >"$dir/manifest.json" <<JSON
[{"Config": "$config.json", "RepoTags": ["$IMAGE"], "Layers": ["layer.tar"]}]
JSON
    tar --create --file "$1" --directory "$dir" manifest.json "$config.json" layer.tar
    rm -r "$dir"
}

digest() {
    sha256sum "$1" | cut -d' ' -f1
}
