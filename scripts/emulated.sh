# shellcheck shell=bash
# Functions for scripts that boot an emulated machine with Debian's kernel. Sourced after machine.sh,
# never run.

# prepare_machine ARCH: sets QEMU's command, the console of the machine, Debian's name of the architecture
# and the name of its kernel. Installs QEMU, and downloads the kernel, if they are missing. Makes the
# directories `cache`, for the kernel, and `room`, for everything that is removed when the script ends.
prepare_machine() {
    room=$(mktemp -d)
    trap 'rm -rf "$room"' EXIT
    debian=$1 kernel=$1
    case $1 in
        arm64)
            need qemu-system-aarch64 qemu-system-arm
            machine=(qemu-system-aarch64 -M virt -cpu cortex-a72) console=ttyAMA0
            ;;
        ppc64le)
            need qemu-system-ppc64 qemu-system-ppc
            machine=(qemu-system-ppc64 -M pseries -vga none) console=hvc0 debian=ppc64el kernel=powerpc64le
            ;;
        s390x)
            need qemu-system-s390x qemu-system-misc
            machine=(qemu-system-s390x -M s390-ccw-virtio) console=ttysclp0
            ;;
        *) die "no emulated machine for $1" ;;
    esac
    need cpio cpio
    need depmod kmod
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/cni-plugins-rust/$1
    [[ -e $cache/vmlinuz ]] || download_kernel
}

# Downloads and unpacks the kernel and busybox.
download_kernel() {
    say "downloading Debian's kernel for $debian"
    local image package
    mkdir -p "$room/kernel" "$room/unpacked" "$cache"
    foreign_apt apt-get update || say "the packages come from the lists that could be fetched"
    image=$(foreign_apt apt-cache depends "linux-image-$kernel" | sed -n 's/.*Depends: //p')
    (cd "$room/kernel" && foreign_apt apt-get download "$image" busybox-static)
    for package in "$room"/kernel/*.deb; do
        dpkg-deb --extract "$package" "$room/unpacked"
    done
    cp "$room/unpacked/bin/busybox" "$cache"
    rm -rf "${cache:?}/lib"
    cp -r "$room/unpacked/lib" "$cache"
    depmod --basedir "$cache" "${image#linux-image-}"
    cp "$room"/unpacked/boot/vmlinu[xz]-* "$cache/vmlinuz"
}

# foreign_apt PROGRAM ARGUMENT...: runs apt-get or apt-cache for the packages of the architecture, with
# a state of its own: this machine's packages and package sources stay as they are.
foreign_apt() {
    local program=$1
    shift
    mkdir -p "$room"/{state/lists,cache/archives}/partial
    "$program" -qq -o "APT::Architecture=$debian" -o "APT::Architectures=$debian" -o APT::Sandbox::User=root \
        -o "Dir::State=$room/state" -o Dir::State::status=/dev/null -o "Dir::Cache=$room/cache" "$@"
}

# initramfs DIR INIT MODULE...: packs DIR, with busybox, INIT as the first process, and the modules and
# what they need in the order in which INIT has to load them, into the file `room`/initramfs.
initramfs() {
    local root=$1 init=$2 module modules
    shift 2
    mkdir -p "$root"/{bin,dev,etc,modules,proc,run,sbin,sys,tmp}
    cp "$cache/busybox" "$root/bin"
    mapfile -t modules < <(
        for module; do
            modprobe --dirname "$cache" --set-version "$(ls "$cache/lib/modules")" --show-depends "$module"
        done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
    )
    for module in "${!modules[@]}"; do
        cp "${modules[module]}" "$root/modules/$(printf '%03d' "$module").ko"
    done
    install -m 755 /dev/stdin "$root/init" <<<"$init"
    (cd "$root" && find . -print0 | cpio --null --create --quiet --format newc) >"$room/initramfs"
}

# boot SECONDS OPTION...: boots the machine with these options of QEMU, and shows its console and keeps
# it in `room`/console.
boot() {
    local seconds=$1
    shift
    say "booting"
    # The machine ends with this script, also if a signal ends the script. Without a network, it needs no
    # firmware of a network card, which QEMU's package only recommends.
    setpriv --pdeathsig TERM timeout --foreground "$seconds" "${machine[@]}" -smp 2 -nographic -nic none -no-reboot \
        -kernel "$cache/vmlinuz" -initrd "$room/initramfs" "$@" \
        -append "console=$console loglevel=4 panic=-1" </dev/null | stdbuf --output=L tr -d '\r' | tee "$room/console" ||
        die "the emulated machine failed, or did not end within $seconds s"
}
