//! Lengths in the registers into which rules load fields of a packet.

/// Rounds up to registers of four bytes.
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Converts a count; all counts here are far below the limit.
pub(crate) fn u32_of(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
