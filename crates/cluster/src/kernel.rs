//! A socket of rtnetlink.

use rtnetlink::Handle;
use rtnetlink::packet_core::ErrorMessage;
use tokio::task::JoinSet;

use crate::mesh::Endpoints;

/// A socket of rtnetlink.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) handle: Handle,
    /// The endpoints of other nodes that were set through this value.
    pub(crate) endpoints: Endpoints,
    /// The task that reads the socket. It ends when this value is dropped.
    _reader: JoinSet<()>,
}

impl Kernel {
    /// Opens the socket. Has to be called in a runtime of tokio.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn open() -> std::io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let mut reader = JoinSet::new();
        reader.spawn(connection);
        Ok(Self {
            handle,
            endpoints: Endpoints::new(),
            _reader: reader,
        })
    }
}

/// Returns the kernel's error in words.
pub(crate) fn reason(error: &ErrorMessage) -> String {
    error.to_io().to_string()
}

/// The number of requests that wait for the kernel's answer at the same time. The answers have to
/// fit into the socket's buffer of 208 KiB.
pub(crate) const AT_ONCE: usize = 64;
