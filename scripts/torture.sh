#!/usr/bin/env bash
# Injects a failure or a kill at every system call by which a plugin creates, opens, changes or
# requests something, with one ADD, DEL or GC for each, and checks that nothing is left. Then runs
# thousands of random concurrent calls of all plugins, kills many of them, and compares the result
# with a model.
#
#     scripts/torture.sh [--seed N] [--seconds N] [CASE...]
#
# By default all cases except fuzz run:
#
#     bridge, ptp, macvlan, tap, portmap, bandwidth, firewall
#                                    one plugin, bridge with the host-local that it runs
#     tuning, sbr                    the plugin behind bridge
#     vrf                            the same, not by default, because it needs a kernel with VRFs
#     chain                          each plugin of the chain bridge, portmap, bandwidth, and of podman's
#                                    chain bridge, portmap, firewall, tuning
#     soak                           10,000 calls for 300 sandboxes by 32 processes at a time, for each of three
#                                    chains: with bandwidth, podman's, and ptp with static
#     fuzz                           parsers of outside input: each target of tests/fuzz for --seconds (600 by
#                                    default), two at a time; installs cargo-fuzz if it is missing
#
# The script takes an hour or more on two processors. --seed determines the calls of soak. At its
# end it prints a table of the tests that ran. It fails if anything is left, and then names what is
# left and the call above the table. scripts/test.sh runs a sample of these tests.
#
# Needs Rust. Works as root, and as an ordinary user who may create user namespaces. Installs ip,
# nft, ping and strace if they are missing; this needs root or sudo.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

main() {
    local cases=() fuzz=no seconds=600
    while (($# > 0)); do
        case $1 in
            --seed)
                (($# > 1)) || die "--seed needs a value"
                export TORTURE_SEED=$2
                shift
                ;;
            --seconds)
                (($# > 1)) || die "--seconds needs a value"
                seconds=$2
                shift
                ;;
            fuzz) fuzz=yes ;;
            bridge | ptp | macvlan | tap | portmap | bandwidth | firewall | tuning | sbr | vrf | chain) cases+=("--test=${1}_faults") ;;
            soak) cases+=("--test=soak") ;;
            *) die "unknown option or case $1" ;;
        esac
        shift
    done
    [[ $fuzz == no ]] || fuzz "$seconds"
    [[ $fuzz == no || ${#cases[@]} -gt 0 ]] || return 0
    ((${#cases[@]} > 0)) ||
        cases=(--test={bridge,ptp,macvlan,tap,portmap,bandwidth,firewall,tuning,sbr,chain}_faults --test=soak)
    need_rust
    need ip iproute2
    need unshare util-linux
    need ping iputils-ping
    need nft nftables
    need strace strace

    say "building"
    cargo build --workspace --locked --bins "${cases[@]}"

    say "torturing"
    TORTURE_REPORT=$(mktemp)
    export TORTURE=all TORTURE_REPORT
    trap 'rm -f "$TORTURE_REPORT"' EXIT
    local start=$SECONDS passed=yes
    run "${cases[@]}" || passed=no
    say "in $(((SECONDS - start) / 60)) minutes, $(nproc) processors, Linux $(uname -r)"
    table
    [[ $passed == yes ]] || die "something was left, or did not work: it is named above"
}

# fuzz SECONDS: keeps a target's findings in tests/fuzz/artifacts, for `cargo fuzz run TARGET FILE`.
fuzz() {
    need_rust
    need c++ g++
    need_subcommand fuzz
    # The targets are safe Rust, so they need no sanitizer and the stable compiler suffices.
    local fuzz=(cargo fuzz) options=(--fuzz-dir tests/fuzz --sanitizer none)
    say "building"
    "${fuzz[@]}" build "${options[@]}"
    say "fuzzing, $1 seconds each"
    local targets=() reports
    mapfile -t targets < <("${fuzz[@]}" list --fuzz-dir tests/fuzz)
    reports=$(mktemp -d)
    export reports
    # shellcheck disable=SC2016 # expanded inside
    printf '%s\n' "${targets[@]}" | xargs -P 2 -I TARGET bash -c '
        target=$1 seconds=$2
        shift 2
        # New inputs go to another directory, so the corpus keeps few and small files.
        mkdir "$reports/$target.corpus"
        "$@" "$target" "$reports/$target.corpus" "tests/fuzz/corpus/$target" -- \
            -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 \
            -close_fd_mask=3 -print_final_stats=1 >"$reports/$target" 2>&1
        echo $? >"$reports/$target.status"' fuzz TARGET "$1" "${fuzz[@]}" run "${options[@]}"
    fuzz_table "${targets[@]}" || die "a target failed: see tests/fuzz/artifacts"
}

fuzz_table() {
    local target status wrong=0
    printf '\n%-20s %8s %12s %9s %8s\n' target seconds runs covered wrong
    for target in "$@"; do
        status=$(<"$reports/$target.status")
        ((status == 0)) || { wrong=1 && tail -n 30 "$reports/$target" >&2; }
        awk -v target="$target" -v status="$status" '
            / cov: / { covered = $0; sub(/.* cov: /, "", covered); sub(/ .*/, "", covered) }
            /^Done / { runs = $2; seconds = $5 }
            END { printf "%-20s %8s %12s %9s %8s\n", target, seconds + 0, runs + 0, covered + 0, status != 0 }
        ' "$reports/$target"
    done
    rm -rf "$reports"
    ((wrong == 0))
}

run() {
    if cargo nextest --version >/dev/null 2>&1; then
        in_private_network cargo nextest run --workspace "$@" --offline --locked \
            --profile torture --no-fail-fast
    else
        in_private_network cargo test --workspace "$@" --offline --locked --no-fail-fast \
            -- --test-threads "$(nproc)"
    fi
}

# table: prints the results. Wrong are leftovers, an address leased twice, a panic, or a network
# that does not work.
table() {
    grep -v '^#' "$TORTURE_REPORT" | sort | awk -F '\t' '
        function row(words, points, tried, failed, killed, left) {
            printf "%-30s %8s %8s %8s %8s %8s\n", words, points, tried, failed, killed, left
        }
        BEGIN { row("subject, call, what happens", "points", "tried", "failed", "killed", "wrong") }
        {
            row($1 ", " $2 ", " $3, $4, $5, $6, $7, $8)
            for (column = 4; column <= 8; column++) sum[column] += $column
            tried[$3 == "soak" ? "soak" : "faults"] += $5
        }
        END {
            row("all", sum[4] + 0, sum[5] + 0, sum[6] + 0, sum[7] + 0, sum[8] + 0)
            printf "\n%d injection points and %d soak operations tried, %d kills survived: ",
                tried["faults"], tried["soak"], sum[7]
            print sum[8] ? sum[8] " wrong" : "0 leaks, 0 double leases, 0 panics"
        }'
    sed -n 's/^# //p' "$TORTURE_REPORT"
}

main "$@"
