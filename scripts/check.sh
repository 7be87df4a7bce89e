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

# Words that hide who acts, or stand for a term of the field.
readonly UNCLEAR_WORDS="nobody|somebody|whoever|whomever|by which|told|tells|bears?|anew|else's|doomed|nameless|mends?|mended|what is no|who has|that of"

main() {
    need_rust
    need shellcheck shellcheck
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

    step "format" cargo fmt --all --check
    step "length of files" short_files
    step "prose" clear_prose
    step "shell scripts" shellcheck --external-sources scripts/*.sh scripts/*/*.sh .ci/run crates/*/src/*.sh
    step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" step "documentation" \
        cargo doc --workspace --no-deps --document-private-items --locked
    step "32-bit processors" thirty_two_bits
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

# Warns of comments and pages with unclear words; a word that is right where it stands may stay.
clear_prose() {
    local unclear
    unclear=$(git grep -nwiE "$UNCLEAR_WORDS" -- '*.md' '*.rs' |
        grep -E '^[^:]*\.md:|^[^:]*:[0-9]+: *//' | grep -vE ':\|--' || true)
    [[ -z $unclear ]] || printf 'warning: unclear words in %s lines:\n%s\n' \
        "$(wc -l <<<"$unclear")" "$(head -n 20 <<<"$unclear")"
}

# Checks that the executables compile for a 32-bit processor, whose system calls have other types.
thirty_two_bits() {
    local arch target prefix debian
    while read -r arch target prefix debian; do
        [[ $arch == arm ]] || continue
        if ! add_target "$target" || ! need_c_compiler "$prefix" "$debian"; then continue; fi
        cargo check --workspace --bins --locked --target "$target"
        return
    done <scripts/architectures.txt
    echo "rustup can install no target of arm" && return 1
}

# Checks the fuzz targets, which are outside the workspace. The placeholder library saves minutes of
# compiling libFuzzer, which a check does not need. With --target, RUSTFLAGS do not apply to procedural
# macros, so those of the workspace do.
fuzz_targets() {
    local manifest=(--manifest-path tests/fuzz/Cargo.toml)
    cargo fmt "${manifest[@]}" --check || return
    CUSTOM_LIBFUZZER_PATH=/unused/libfuzzer.a RUSTFLAGS="-D warnings --cfg fuzzing" \
        cargo check "${manifest[@]}" --bins --locked --quiet --target "$(rustc --print host-tuple)" \
        --target-dir target
}

# Checks tests/e2e, which is outside the workspace, too.
end_to_end() {
    local manifest=(--manifest-path tests/e2e/Cargo.toml)
    cargo fmt "${manifest[@]}" --check || return
    cargo clippy "${manifest[@]}" --locked --target-dir target -- -D warnings
}

# Checks dependencies and their direction. Checks known vulnerabilities only if their database can
# be fetched, or a copy of it exists.
dependencies() {
    need_subcommand deny
    cargo deny check --hide-inclusion-graph -A unused-wrapper bans licenses sources || return
    if cargo deny fetch db >/dev/null 2>&1 ||
        compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/.git/FETCH_HEAD" >/dev/null; then
        cargo deny --offline check advisories
    else
        echo "advisories: not checked, since their database cannot be fetched from here"
    fi
}

main "$@"
