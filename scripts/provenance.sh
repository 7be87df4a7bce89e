#!/usr/bin/env bash
# Writes the provenance of a release, DIR/provenance.json: an in-toto statement with SLSA's predicate
# for builds, version 1. It says from which commit, by which compiler and when the files of DIR were
# built. The signature of SHA256SUMS covers it.
#
#     [BUILDER_ID=URI] scripts/provenance.sh STARTED DIR [OPTIONS [ARCH:TARGET:LINKER]...]
#
# STARTED is the time at which the build began, in ISO 8601. BUILDER_ID names who built. OPTIONS are those
# of scripts/release.sh, in one word. The other arguments name each architecture, Rust's target for it,
# and the linker, which is empty if it is Rust's own.
#
# Needs Rust. Installs jq if it is missing.

set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    (($# >= 2)) || die "usage: scripts/provenance.sh STARTED DIR [OPTIONS [ARCH:TARGET:LINKER]...]"
    need_rust
    need jq jq
    local directory commit source differences changed=false
    directory=$(absolute "$2")
    commit=$(git rev-parse HEAD)
    source=$(public_address "$(git remote get-url origin 2>/dev/null || true)")
    differences=$(git status --porcelain)
    [[ -z $differences ]] || changed=true
    [[ $changed == false ]] || say "NOT A RELEASE: files differ from commit $commit, and provenance.json says so"
    jq --null-input --sort-keys \
        --argjson subject "$(subjects "$directory")" \
        --arg source "git+$source@$commit" \
        --arg commit "$commit" \
        --argjson changed "$changed" \
        --arg lock "$(sha256sum Cargo.lock | cut -d' ' -f1)" \
        --arg options "${3:-}" \
        --argjson tools "$(tools)" \
        --arg linkers "$(linkers "${@:4}")" \
        --arg builder "${BUILDER_ID:-urn:cni-plugins-rust:builder:unnamed}" \
        --arg started "$1" --arg finished "$(date --utc +%FT%TZ)" "$STATEMENT" --args "${@:4}" >"$scratch"
    install -m 644 "$scratch" "$directory/provenance.json"
}

scratch=$(mktemp)
readonly scratch
trap 'rm -f "$scratch"' EXIT

# public_address REMOTE: prints the address of a git remote without password or token. A path of this
# machine, and an address of an unknown form, become file:///source.
public_address() {
    local address=${1%%[?#]*} user
    if [[ $address =~ ^(https?|git)://([^/]*@)?(.+)$ ]]; then
        echo "${BASH_REMATCH[1]}://${BASH_REMATCH[3]}"
    elif [[ $address =~ ^ssh://([^/]*@)?(.+)$ ]]; then
        user=${BASH_REMATCH[1]%%[:@]*}
        echo "ssh://${user:+$user@}${BASH_REMATCH[2]}"
    elif [[ $address =~ ^([^/:@]+@)?([^/:@]+|\[[^]/]+\]):/?([^/:@][^:@]*)$ ]]; then
        echo "ssh://${BASH_REMATCH[1]}${BASH_REMATCH[2]}/${BASH_REMATCH[3]}"
    else
        echo "file:///source"
    fi
}

# Prints the versions of what builds and packs.
tools() {
    jq --null-input --arg rustc "$(rustc --version --verbose)" --arg auditable "$CARGO_AUDITABLE" \
        --arg cyclonedx "$CARGO_CYCLONEDX" --arg nfpm "$NFPM" \
        '{rustc: $rustc, "cargo-auditable": $auditable, "cargo-cyclonedx": $cyclonedx, nfpm: $nfpm}'
}

# linkers [ARCH:TARGET:LINKER]...: prints a line with the name and the version of each linker.
linkers() {
    local word
    for word; do
        [[ -z ${word##*:} ]] || "${word##*:}" --version | sed 1q
    done
}

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
            externalParameters: {
                source: $source, uncommittedChanges: $changed,
                options: ($options | split(" ")),
                architectures: ($ARGS.positional | map(split(":")[0]))
            },
            internalParameters: ($tools + {
                targets: ($ARGS.positional | map(split(":")[1])),
                linkers: ($linkers | split("\n"))
            }),
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
