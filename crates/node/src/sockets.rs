//! Ports that processes of the node listen on.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A port that a process listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// Number of the transport protocol.
    pub protocol: u8,
    /// The socket's address. The IPv4-mapped address of an IPv6 socket is given as an IPv4 address.
    /// A socket of `::` may also accept IPv4; the kernel does not report that.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The process's name, if known.
    pub process: Option<String>,
}

/// Returns the TCP and UDP sockets in this network namespace that receive packets from any sender.
pub(super) fn listening() -> Vec<Socket> {
    let mut sockets = Vec::new();
    let holders = holders();
    for (file, protocol, state) in TABLES {
        // On a kernel without IPv6, two of the files do not exist.
        let table = fs::read_to_string(Path::new("/proc/net").join(file)).unwrap_or_default();
        let lines = table.lines().skip(1);
        let listeners = lines.filter_map(|line| listener(line, state));
        sockets.extend(listeners.map(|(local, inode)| Socket {
            protocol,
            address: local.ip().to_canonical(),
            port: local.port(),
            process: holders.get(&inode).cloned(),
        }));
    }
    sockets
}

/// Returns the address, the port and the inode of the socket on this line (proc(5),
/// `/proc/net/tcp`); `None` if the socket is not in `state`, or if the line is invalid.
fn listener(line: &str, state: &str) -> Option<(SocketAddr, u64)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, _remote, found) = (words.next()?, words.next()?, words.next()?);
    let (local, port) = local.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = words.nth(5)?.parse().ok()?;
    (found == state).then_some((SocketAddr::new(address(local)?, port), inode))
}

/// Parses an address of `/proc/net/tcp`: one (IPv4) or four (IPv6) hexadecimal numbers of 32 bits
/// in native byte order (`get_tcp4_sock()` in `net/ipv4/tcp_ipv4.c`). Returns `None` for other
/// text.
fn address(digits: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for place in (0..digits.len()).step_by(8) {
        let number = digits.get(place..place + 8)?;
        bytes.extend(u32::from_str_radix(number, 16).ok()?.to_ne_bytes());
    }
    let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from);
    v4.or(v6).ok()
}

/// Returns the names of processes, by the inodes of the sockets that they have open.
fn holders() -> HashMap<u64, String> {
    let mut holders = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let files = fs::read_dir(process.path().join("fd"));
        let files = files.into_iter().flatten().flatten();
        let links = files.filter_map(|it| fs::read_link(it.path()).ok());
        let inodes = links.filter_map(|it| inode(&it.to_string_lossy()));
        let inodes: Vec<_> = inodes.collect();
        if !inodes.is_empty()
            && let Ok(name) = fs::read_to_string(process.path().join("comm"))
        {
            let name = name.trim_end();
            holders.extend(inodes.into_iter().map(|it| (it, name.to_owned())));
        }
    }
    holders
}

fn inode(link: &str) -> Option<u64> {
    let number = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// For each list of sockets: the file below `/proc/net`, the protocol's number, and the state of a
/// socket that receives packets from any sender. The state is `TCP_LISTEN` for TCP. It is
/// `TCP_CLOSE` for UDP, which has no connections.
const TABLES: [(&str, u8, &str); 4] = [
    ("tcp", 6, "0A"),
    ("tcp6", 6, "0A"),
    ("udp", 17, "07"),
    ("udp6", 17, "07"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_both_families() {
        for text in [
            "0.0.0.0",
            "192.0.2.1",
            "::",
            "2001:db8::1",
            "::ffff:192.0.2.1",
        ] {
            let expected: IpAddr = text.parse().unwrap();
            let bytes = match expected {
                IpAddr::V4(it) => it.octets().to_vec(),
                IpAddr::V6(it) => it.octets().to_vec(),
            };
            let words = bytes
                .chunks(4)
                .map(|it| u32::from_ne_bytes(it.try_into().unwrap()));
            let digits = words.map(|it| format!("{it:08X}")).collect::<Vec<_>>();
            assert_eq!(address(&digits.concat()), Some(expected), "{text}");
        }
        for torn in ["", "7F", "0100007F0100007F", "0100007G"] {
            assert_eq!(address(torn), None, "{torn}");
        }
    }

    #[test]
    fn line_of_a_listener_is_parsed() {
        let local = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
        let line = format!(
            "   0: {local}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        \
             0 12345 1 0000000000000000 100 0 0 10 0"
        );
        let line = line.as_str();
        let heard = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(listener(line, "0A"), Some((heard, 12345)));
        assert_eq!(listener(line, "07"), None);
        assert_eq!(listener("", "0A"), None);
        assert_eq!(inode("socket:[12345]"), Some(12345));
        assert_eq!(inode("/dev/null"), None);
    }
}
