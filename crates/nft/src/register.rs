//! Registers into which rules load fields of a packet.

use std::net::IpAddr;

/// Number of a register: `NFT_REG_…` or `NFT_REG32_…`.
pub(crate) type Register = u32;

/// The register for verdicts: `NFT_REG_VERDICT`.
pub(crate) const VERDICT: Register = 0;

/// `NFT_REG_1`, for a single value that a rule compares or changes.
pub(crate) const SCRATCH: Register = 1;

/// `NFT_REG32_00`, the first of sixteen registers of four bytes. The key of a look-up starts here.
pub(crate) const FIRST: Register = 8;

/// Converts 4 or 16 bytes to an IP address; `None` for any other length.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// Rounds a length up to a multiple of four bytes, the size of a register.
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Converts a count to `u32`; all counts in this crate are far below the limit of `u32`.
pub(crate) fn u32_of(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
