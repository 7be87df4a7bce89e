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

# Prints this machine's architecture as archives, Debian and images name it.
architecture() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) uname -m ;;
    esac
}

say() { printf '\n==> %s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
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

need_rust() {
    command -v cargo >/dev/null || die "install Rust first, by rustup"
    need cc gcc libc6-dev
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
    [[ -d $(rustc --print target-libdir --target "$target") ]] ||
        rustup target add "$target" >&2 || return
    echo "$target"
}

# Builds what the arguments select for cargo, such as --bins, for the static target. Prints the
# directory of the executables.
static_executables() {
    local target
    target=$(static_target) || return
    cargo build --release --locked "$@" --target "$target" >&2 || return
    echo "$(realpath "${CARGO_TARGET_DIR:-target}")/$target/release"
}
