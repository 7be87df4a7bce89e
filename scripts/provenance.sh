#!/usr/bin/env bash
# Writes the provenance of a release, DIR/provenance.json: an in-toto statement with SLSA's predicate
# for builds, version 1. It says from which commit, by which compiler and when the files of DIR were
# built. The signature of SHA256SUMS covers it.
#
#     [BUILDER_ID=URI] scripts/provenance.sh STARTED DIR
#
# STARTED is the time at which the build began, in ISO 8601. BUILDER_ID names who built.
#
# Needs Rust. Installs jq if it is missing.

set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    (($# == 2)) || die "usage: scripts/provenance.sh STARTED DIR"
    need_rust
    need jq jq
    local directory commit source changed=false
    directory=$(absolute "$2")
    commit=$(git rev-parse HEAD)
    source=$(git remote get-url origin 2>/dev/null || true)
    [[ -z $(git status --porcelain) ]] || changed=true
    [[ $changed == false ]] || say "NOT A RELEASE: files differ from commit $commit, and provenance.json says so"
    jq --null-input --sort-keys \
        --argjson subject "$(subjects "$directory")" \
        --arg source "git+${source:-file:///}@$commit" \
        --arg commit "$commit" \
        --argjson changed "$changed" \
        --arg lock "$(sha256sum Cargo.lock | cut -d' ' -f1)" \
        --arg rustc "$(rustc --version --verbose)" \
        --arg builder "${BUILDER_ID:-urn:cni-plugins-rust:builder:unnamed}" \
        --arg started "$1" --arg finished "$(date --utc +%FT%TZ)" "$STATEMENT" >"$scratch"
    mv "$scratch" "$directory/provenance.json"
}

scratch=$(mktemp)
readonly scratch
trap 'rm -f "$scratch"' EXIT

subjects() {
    (cd "$1" && find . -maxdepth 1 -type f ! -name provenance.json ! -name '*.sha*' ! -name 'SHA256SUMS*' \
        -printf '%P\0' | sort --zero-terminated | xargs -0 sha256sum) |
        jq --raw-input --slurp 'split("\n") | map(select(. != "") | split("  ")
            | {name: .[1], digest: {sha256: .[0]}})'
}

# shellcheck disable=SC2016 # $ is jq's
readonly STATEMENT='{
    _type: "https://in-toto.io/Statement/v1",
    subject: $subject,
    predicateType: "https://slsa.dev/provenance/v1",
    predicate: {
        buildDefinition: {
            buildType: "urn:cni-plugins-rust:release.sh:1",
            externalParameters: {source: $source, uncommittedChanges: $changed},
            internalParameters: {rustc: $rustc},
            resolvedDependencies: [
                {uri: $source, digest: {gitCommit: $commit}},
                {name: "Cargo.lock", digest: {sha256: $lock}}
            ]
        },
        runDetails: {
            builder: {id: $builder},
            metadata: {startedOn: $started, finishedOn: $finished}
        }
    }
}'

main "$@"
