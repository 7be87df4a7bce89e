# shellcheck shell=bash
# Checks, most of which test traffic. Sourced by scripts/e2e.sh.

passed=0
failed=0
runtime=

# under RUNTIME: sets the runtime of the following checks.
under() {
    runtime=$1
}

# check WHAT COMMAND...: prints one line, and the command's output if it failed. The command runs in
# a subshell.
check() {
    local what="$runtime: $1" output status
    shift
    set +e
    output=$(
        set -e
        "$@" 2>&1
    )
    status=$?
    set -e
    if ((status == 0)); then
        passed=$((passed + 1))
        printf 'ok      %s\n' "$what"
    else
        failed=$((failed + 1))
        printf 'FAILED  %s\n' "$what"
        printf '%s\n' "${output:-(it said nothing)}" | sed 's/^/            /'
    fi
}

# report: prints the result, however the script ends.
report() {
    local status=$?
    ((status == 0)) || { failed=$((failed + 1)) && printf 'FAILED  %s: it ends here\n' "$runtime"; }
    printf '\n%s passed, %s failed\n' "$passed" "$failed"
    exit $((failed > 0))
}

# within SECONDS COMMAND...: repeats the command until it succeeds; the last try prints its output.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || break
        sleep 0.1
    done
    "$@"
}

# answers NAME tcp|udp ADDRESS [COMMAND...]: checks that the pod NAME answers at ADDRESS, asked from
# COMMAND's namespace.
answers() {
    local answer
    answer=$("${@:4}" peer ask "$2" "$3")
    [[ ${answer%% *} == "$1" ]] || { echo "$2 $3: $1 expected, but: $answer" && return 1; }
}

# refused tcp|udp ADDRESS [COMMAND...]: checks that no server answers there.
refused() {
    local answer
    ! answer=$("${@:3}" peer ask "$1" "$2" 2>&1) || { echo "$1 $2: $answer" && return 1; }
}

# seen_as ADDRESS URL [COMMAND...]: checks that the server at URL sees COMMAND's namespace as
# ADDRESS.
seen_as() {
    local answer
    answer=$("${@:3}" peer ask tcp "$2")
    [[ ${answer##* } == "$1" ]] || { echo "$2: seen as ${answer##* }, not $1" && return 1; }
}

# limited MBIT ADDRESS [COMMAND...]: checks that traffic from ADDRESS has 75 to 110 % of the limit
# in the 4 s after the first byte.
limited() {
    local rate
    rate=$("${@:3}" peer pull "$2" 4)
    ((rate > $1 * 750000 && rate < $1 * 1100000)) ||
        { echo "$rate bit/s where $1 Mbit/s are the limit" && return 1; }
}
