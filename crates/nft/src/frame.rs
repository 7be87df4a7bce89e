//! A message as it is sent.

use netlink::{Datagram, Header};

/// A message as it is sent, except for its number.
pub(crate) struct Frame {
    pub kind: u16,
    pub flags: u16,
    pub body: Vec<u8>,
}

impl Frame {
    /// Returns the message with these flags in addition.
    pub fn with(self, flags: u16) -> Self {
        let flags = self.flags | flags;
        Self { flags, ..self }
    }

    pub fn append_to(&self, datagram: &mut Datagram, number: u32) {
        let header = Header {
            kind: self.kind,
            flags: self.flags,
            number,
        };
        datagram.add(header, &self.body);
    }
}
