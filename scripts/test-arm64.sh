#!/usr/bin/env bash
# Runs the tests on arm64, in an emulated machine with Debian's kernel and programs:
#
#     scripts/test-arm64.sh                              the unit tests and the black-box suite
#     scripts/test-arm64.sh --test ptp_add --test gc     these files of the black-box suite
#
# Each test runs in a process and a private network of its own, as with cargo-nextest, three at a time.
# At the end, the script prints how many tests passed, and the names of those that did not. The whole
# suite takes hours, because QEMU emulates the processor.
#
# Needs Rust and root. Installs QEMU, cpio, kmod and e2fsprogs if they are missing, and downloads
# Debian's kernel and programs for arm64 into a cache.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/machine.sh
source scripts/machine.sh
# shellcheck source=scripts/emulated.sh
source scripts/emulated.sh

readonly TARGET=aarch64-unknown-linux-musl

# The programs that the tests call, as scripts/test.sh installs them, and what Debian always has.
readonly PROGRAMS=(bash dash coreutils findutils sed grep gawk util-linux mount procps kmod libc-bin base-passwd
    iproute2 iputils-ping nftables dnsmasq-base iptables dbus-daemon firewalld strace groff-base
    containernetworking-plugins)

main() {
    need_rust
    need mke2fs e2fsprogs
    add_target "$TARGET" || die "rustup cannot install $TARGET"
    prepare_machine arm64
    [[ $(cat "$cache/programs/list" 2>/dev/null) == "${PROGRAMS[*]}" ]] || install_programs
    local executables=(--bins --examples) selection=(--workspace --lib --bins --examples --tests)
    (($# == 0)) || executables=(--bins) selection=(--package tests "$@")

    say "building for $TARGET"
    build
    make_disk
    initramfs "$room/first" "$INIT" virtio_pci virtio_blk ext4
    boot "${TIMEOUT:-5400}" -m 4096 -drive "file=$room/disk,format=raw,if=virtio,cache=unsafe"
    grep -qE "^tests on aarch64: [1-9][0-9]* passed, 0 failed" "$room/console" || die "tests failed on arm64"
}

# Unpacks Debian's programs and what they depend on into the cache. Runs none of them: each package only
# needs its files, two user lists and the links that Debian's installer makes for iptables.
install_programs() {
    say "downloading Debian's programs for arm64"
    local root=$cache/programs package
    rm -rf "$root"
    mkdir -p "$root"/{dev,etc,opt,proc,run,sys,tmp,root,var/lib} "$root"/usr/{bin,sbin,lib}
    ln -s usr/bin usr/sbin usr/lib "$root"
    foreign_apt apt-get update || say "the packages come from the lists that could be fetched"
    foreign_apt apt-get install --download-only --no-install-recommends --yes "${PROGRAMS[@]}" >/dev/null
    for package in "$room"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar --extract --keep-directory-symlink --directory "$root"
    done
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    echo "messagebus:x:100:100::/nonexistent:/usr/sbin/nologin" >>"$root/etc/passwd"
    echo "messagebus:x:100:" >>"$root/etc/group"
    local program
    for program in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
        ln -sf xtables-nft-multi "$root/usr/sbin/$program"
    done
    echo "127.0.0.1 localhost" >"$root/etc/hosts"
    echo "${PROGRAMS[*]}" >"$root/list"
}

# Builds the executables and the selected tests. Writes the directory and the path of each test executable
# into the file `room`/tests.
build() {
    local cargo=(env "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld"
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS=-Clink-self-contained=yes"
        CARGO_PROFILE_DEV_STRIP=debuginfo CARGO_PROFILE_DEV_OPT_LEVEL=1 cargo)
    "${cargo[@]}" build --workspace --locked "${executables[@]}" --target "$TARGET"
    "${cargo[@]}" test "${selection[@]}" --locked --target "$TARGET" --no-run --message-format json-render-diagnostics |
        sed -n '/"profile":{[^}]*"test":true/s|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"executable":"\([^"]*\)".*|\1 \2|p' \
            >"$room/tests"
    [[ -s $room/tests ]] || die "no test was built"
}

# Makes the disk of the machine: Debian's programs and kernel modules, the source, and what was built, at
# the paths that they have on this machine.
make_disk() {
    local root=$room/disk.d built
    built=$(realpath "${CARGO_TARGET_DIR:-target}")/$TARGET/debug
    cp -a "$cache/programs" "$root"
    cp -r "$cache/lib/modules" "$root/usr/lib"
    copy_source "$root$PWD"
    mkdir -p "$root$built/deps"
    cp "${EXECUTABLES[@]/#/$built/}" "$built/$AGENT" "$root$built"
    cut -d " " -f 2 "$room/tests" | xargs cp -t "$root$built/deps"
    [[ ! -d $built/examples ]] || cp -r "$built/examples" "$root$built"
    cp "$room/tests" "$root/tests"
    install -m 755 /dev/stdin "$root/run-tests" <<<"${RUN_TESTS//SOURCE/$PWD}"
    mke2fs -q -t ext4 -d "$root" "$room/disk" 8G >/dev/null
}

# The first process of the machine.
# shellcheck disable=SC2016 # expanded inside
readonly INIT='#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
mkdir /disk
mount -t ext4 /dev/vda /disk
exec switch_root /disk /run-tests'

# Runs all tests. SOURCE becomes the directory of this repository.
# shellcheck disable=SC2016 # expanded inside
readonly RUN_TESTS='#!/bin/bash
export PATH=/usr/sbin:/usr/bin HOME=/root RUST_BACKTRACE=0
# Without cargo, the library of snapshots does not find them by itself.
export INSTA_UPDATE=no INSTA_WORKSPACE_ROOT=SOURCE
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
ln -s /proc/self/fd /dev/fd
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ulimit -n 65536
ip link set lo up
modprobe -a br_netfilter sch_fq_codel sctp 8021q tun
source SOURCE/scripts/machine.sh

# run DIR EXECUTABLE TEST: runs one test in DIR and prints its time, and its output if it fails.
run() {
    local name output begin=$EPOCHREALTIME result=ok
    name=$(basename "$2")
    output=$(mktemp)
    cd "$1"
    in_private_network timeout 600 "$2" --exact "$3" --nocapture >"$output" 2>&1 </dev/null || result=FAILED
    [ $result = ok ] || tail -n 40 "$output"
    printf "%s %s %s (%s ms)\n" "$result" "${name%-*}" "$3" $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))
    rm "$output"
}
export -f run in_private_network

while read -r directory executable; do
    "$executable" --list --format terse 2>/dev/null | sed -n "s|\(.*\): test\$|$directory $executable \1|p"
done </tests >/run/all
xargs --arg-file /run/all -P 3 -n 3 bash -c "run \"\$@\"" run 2>&1 | tee /run/results
failed=$(grep -c "^FAILED " /run/results)
grep "^FAILED " /run/results
echo "tests on $(uname -m): $(grep -c "^ok " /run/results) passed, $failed failed, Linux $(uname -r)"
sync
echo o >/proc/sysrq-trigger
sleep 60'

main "$@"
