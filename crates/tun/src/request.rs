//! The requests (ioctl(2)) of `/dev/net/tun`, and the only unsafe code of the suite.

#![expect(
    unsafe_code,
    reason = "neither the standard library nor nix nor rustix has these requests as safe functions"
)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc::{
    __c_anonymous_ifr_ifru, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_TUN_EXCL, IFNAMSIZ, Ioctl,
    TUNSETGROUP, TUNSETIFF, TUNSETOWNER, TUNSETPERSIST, c_char, c_ulong, ifreq, ioctl,
};

/// A property of the link that belongs to an open device file.
#[derive(Clone, Copy)]
pub enum Setting {
    /// The user whose programs may open the link.
    Owner(u32),
    /// The group whose programs may open the link.
    Group(u32),
    /// The link stays when its last program ends.
    Persistent,
}

/// Makes the link `name`, of at most 15 bytes, which belongs to `device` from now on. The kernel
/// refuses the name of an existing link.
pub fn create(device: BorrowedFd<'_>, name: &str, multi_queue: bool) -> io::Result<()> {
    let queues = if multi_queue { IFF_MULTI_QUEUE } else { 0 };
    // As bits: the highest one is IFF_TUN_EXCL.
    let flags =
        u16::try_from(IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL | queues).map_err(io::Error::other)?;
    let mut request = ifreq {
        ifr_name: [0; IFNAMSIZ],
        ifr_ifru: __c_anonymous_ifr_ifru {
            ifru_flags: flags.cast_signed(),
        },
    };
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::ENAMETOOLONG.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    // SAFETY: The descriptor is open as long as `device` is borrowed. For TUNSETIFF, the kernel reads
    // and writes one `struct ifreq` at the address (`__tun_chr_ioctl`), and this one is borrowed
    // exclusively and outlives the call.
    let result = unsafe { ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) };
    Ok(Errno::result(result).map(drop)?)
}

/// Sets a property of the link of `device`.
pub fn set(device: BorrowedFd<'_>, setting: Setting) -> io::Result<()> {
    let (number, value): (Ioctl, u32) = match setting {
        Setting::Owner(user) => (TUNSETOWNER, user),
        Setting::Group(group) => (TUNSETGROUP, group),
        Setting::Persistent => (TUNSETPERSIST, 1),
    };
    // SAFETY: The descriptor is open as long as `device` is borrowed. The kernel takes the argument of
    // these three requests as a number (`__tun_chr_ioctl`), so it accesses no memory of this process.
    let result = unsafe { ioctl(device.as_raw_fd(), number, c_ulong::from(value)) };
    Ok(Errno::result(result).map(drop)?)
}
