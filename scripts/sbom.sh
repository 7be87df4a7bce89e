#!/usr/bin/env bash
# Writes the bill of materials of executables, in CycloneDX 1.5: the crates in each of them, with
# versions and licences, and the SHA-256 of each.
#
#     scripts/sbom.sh TARGET EXECUTABLES FILE
#
# EXECUTABLES is a directory of executables for Rust's target TARGET. cargo-cyclonedx describes each
# executable; the script joins these descriptions. The same source produces the same bytes.
#
# Needs Rust. Installs cargo-cyclonedx and jq if they are missing.

set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    (($# == 3)) || die "usage: scripts/sbom.sh TARGET EXECUTABLES FILE"
    local executables file name
    executables=$(absolute "$2")
    file=$(absolute "$3")
    time_of_commit
    need_rust
    need jq jq
    need_subcommand cyclonedx "$CARGO_CYCLONEDX"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    copy_source "$scratch/source"
    cargo cyclonedx --quiet \
        --manifest-path "$scratch/source/Cargo.toml" --format json --spec-version 1.5 \
        --describe binaries --no-build-deps --target "$1"
    for name in "${EXECUTABLES[@]}" "$AGENT"; do
        describe "$name" "$executables/$name"
    done | sed "s|file://$scratch/source|file:///source|g" |
        jq --slurp --sort-keys --arg version "$(version)" "$JOIN" >"$file"
}

# describe NAME EXECUTABLE: prints the description, with the checksum of the executable.
describe() {
    jq --arg sum "$(sha256sum "$2" | cut -d' ' -f1)" \
        '.metadata.component.hashes = [{alg: "SHA-256", content: $sum}]' \
        "$scratch"/source/crates/*/"$1"_bin.cdx.json
}

# Joins descriptions: the executables become parts of one product. They share crates. cnitool has the
# crates of plugins, too, which are listed once, as executables.
# shellcheck disable=SC2016 # $ is jq's
readonly JOIN='
    (map(.metadata.component)) as $executables
    | .[0] + {
        metadata: (.[0].metadata + {component: {
            type: "application", "bom-ref": "cni-plugins-rust", name: "cni-plugins-rust",
            version: $version, licenses: [{expression: "Apache-2.0"}], components: $executables}}),
        components: (map(.components[]) | unique_by(."bom-ref")
            | map(select(."bom-ref" | IN($executables[]."bom-ref") | not))),
        dependencies: ([{ref: "cni-plugins-rust", dependsOn: ($executables | map(."bom-ref"))}]
            + (map(.dependencies[]) | group_by(.ref)
                | map({ref: .[0].ref, dependsOn: (map(.dependsOn // []) | add | unique)})))
    }'

main "$@"
