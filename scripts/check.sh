#!/usr/bin/env bash
# Checks everything that does not need a run: format, lints, documentation, dependencies and their
# direction, length of files, shell scripts.
#
# Needs Rust. Installs shellcheck, rustfmt, clippy and cargo-deny if they are missing; packages need
# root or sudo.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh

readonly LINES_OF_A_FILE=400

main() {
    need_rust
    need shellcheck shellcheck
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

    step "format" cargo fmt --all --check
    step "length of files" short_files
    step "shell scripts" shellcheck --external-sources scripts/*.sh scripts/*/*.sh .ci/run crates/*/src/*.sh
    step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" step "documentation" \
        cargo doc --workspace --no-deps --document-private-items --locked
    step "fuzz targets" fuzz_targets
    step "what e2e.sh runs" end_to_end
    step "dependencies" dependencies
    finish
}

failed=()

# Runs a step and records a failure; the other steps still run.
step() {
    local name=$1
    shift
    say "$name"
    "$@" || failed+=("$name")
}

finish() {
    ((${#failed[@]} == 0)) || die "failed: $(printf '%s; ' "${failed[@]}")"
    say "all checks passed"
}

short_files() {
    local long
    long=$(find crates tests -name '*.rs' -exec wc -l {} + |
        awk -v limit="$LINES_OF_A_FILE" '$2 != "total" && $1 > limit')
    [[ -z $long ]] || { printf 'over %s lines:\n%s\n' "$LINES_OF_A_FILE" "$long" && false; }
}

# They are no part of the workspace. libFuzzer, which they link, takes minutes to compile and is not needed here.
fuzz_targets() {
    local manifest=(--manifest-path tests/fuzz/Cargo.toml)
    cargo fmt "${manifest[@]}" --check || return
    CUSTOM_LIBFUZZER_PATH=/unused/libfuzzer.a RUSTFLAGS="-D warnings --cfg fuzzing" \
        cargo check "${manifest[@]}" --bins --locked --quiet
}

# Checks tests/e2e, which is outside the workspace, too.
end_to_end() {
    local manifest=(--manifest-path tests/e2e/Cargo.toml)
    cargo fmt "${manifest[@]}" --check || return
    cargo clippy "${manifest[@]}" --locked -- -D warnings
}

# Checks dependencies and their direction. Checks known vulnerabilities only if their database can
# be fetched.
dependencies() {
    cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
    cargo deny check --hide-inclusion-graph -A unused-wrapper bans licenses sources || return
    if cargo deny fetch db >/dev/null 2>&1; then
        cargo deny check --disable-fetch advisories
    else
        echo "advisories: not checked, since their database cannot be fetched from here"
    fi
}

main "$@"
