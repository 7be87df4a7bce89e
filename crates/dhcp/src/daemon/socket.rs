//! A socket for whole frames of one interface.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::thread;

use netlink::Connection;
use nix::ifaddrs::getifaddrs;
use nix::libc::ETH_P_IP;
use nix::sys::socket::bind;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::net::UdpSocket;

/// A socket that receives the answers of one transaction and sends any frame over its interface.
/// Tokio reads and writes any datagram socket as it does a UDP socket.
#[derive(Debug)]
pub(crate) struct FrameSocket(Option<UdpSocket>);

/// Opens a socket for the link with this index, which receives the answers with the transaction number
/// `number`. Must run in the namespace of the link.
///
/// # Errors
/// `CAP_NET_RAW` is missing, the link does not exist, or the namespace has more than 10,000 links or
/// addresses.
pub(crate) fn open(link: u32, number: u32) -> anyhow::Result<Socket> {
    let protocol = i32::from(u16::try_from(ETH_P_IP).unwrap_or_default().to_be());
    let socket = Socket::new(
        Domain::PACKET,
        Type::RAW.nonblocking(),
        Some(Protocol::from(protocol)),
    )?;
    // Without the filter, the packets of a busy container would fill the buffer, and a flood to port
    // 68 would keep the daemon busy.
    socket.attach_filter(&answers(number))?;
    // getifaddrs(3) keeps lists of any length in memory, and a pod decides how long they are.
    let connection = Connection::open_wary()?;
    connection.links()?;
    connection.every_address()?;
    let mut addresses = getifaddrs()?.filter_map(|it| it.address?.as_link_addr().copied());
    let address = addresses.find(|it| u32::try_from(it.ifindex()) == Ok(link));
    let address = address.ok_or_else(|| io::Error::from(ErrorKind::NotFound))?;
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

impl FrameSocket {
    /// Takes over a socket that [`open`] has opened.
    ///
    /// # Errors
    /// The kernel refuses to watch the socket.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        Ok(Self(Some(UdpSocket::from_std(socket.into())?)))
    }

    fn get(&self) -> io::Result<&UdpSocket> {
        // There is one until `drop`.
        self.0.as_ref().ok_or(ErrorKind::NotConnected.into())
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The link is down or gone.
    pub(crate) async fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.get()?.send(frame).await.map(drop)
    }

    /// Receives a frame.
    ///
    /// # Errors
    /// The link is down or gone.
    pub(crate) async fn receive(&self) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; LARGEST];
        let received = self.get()?.recv(&mut frame).await?;
        frame.truncate(received);
        Ok(frame)
    }
}

impl Drop for FrameSocket {
    /// Closes the socket in a thread of its own: the kernel takes 10 ms, in which the daemon would
    /// serve no other attachment.
    fn drop(&mut self) {
        if let Some(socket) = self.0.take().map(UdpSocket::into_std) {
            // Without a thread, the socket is closed here.
            thread::Builder::new().spawn(move || drop(socket)).ok();
        }
    }
}

/// Size of the largest frame in bytes; the kernel cuts longer ones.
const LARGEST: usize = 9216;

/// Returns a filter that accepts answers of DHCP servers with the transaction number `number`, and no
/// fragments. `tcpdump -dd 'udp dst port 68 and udp[8] = 2 and udp[12:4] = NUMBER'` prints one like it.
const fn answers(number: u32) -> [SockFilter; 13] {
    [
        // The protocol in the IPv4 header is UDP.
        SockFilter::new(LOAD_BYTE, 0, 0, 23),
        SockFilter::new(IS_EQUAL, 0, 10, 17),
        // The packet is not fragmented.
        SockFilter::new(LOAD_HALF, 0, 0, 20),
        SockFilter::new(HAS_BITS, 8, 0, 0x3fff),
        // The port behind the IPv4 header is 68.
        SockFilter::new(HEADER_LENGTH, 0, 0, 14),
        SockFilter::new(LOAD_HALF_BEHIND, 0, 0, 16),
        SockFilter::new(IS_EQUAL, 0, 5, 68),
        // The operation is BOOTREPLY.
        SockFilter::new(LOAD_BYTE_BEHIND, 0, 0, 22),
        SockFilter::new(IS_EQUAL, 0, 3, 2),
        // The transaction is this one.
        SockFilter::new(LOAD_WORD_BEHIND, 0, 0, 26),
        SockFilter::new(IS_EQUAL, 0, 1, number),
        SockFilter::new(RETURN, 0, 0, 0xffff),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

// Instructions, from linux/bpf_common.h.
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE_BEHIND: u16 = 0x50;
const LOAD_HALF_BEHIND: u16 = 0x48;
const LOAD_WORD_BEHIND: u16 = 0x40;
const HEADER_LENGTH: u16 = 0xb1;
const IS_EQUAL: u16 = 0x15;
const HAS_BITS: u16 = 0x45;
const RETURN: u16 = 0x06;
