//! What processes of the node listen on.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// A port that a process listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The port.
    pub port: u16,
    /// The process by its name, where it can be told.
    pub process: Option<String>,
}

/// Of tcp and udp, in this namespace.
pub(super) fn listening() -> Vec<Socket> {
    let mut sockets = Vec::new();
    let holders = holders();
    for (file, protocol, state) in TABLES {
        // Without IPv6 there are two of them.
        let table = fs::read_to_string(Path::new("/proc/net").join(file)).unwrap_or_default();
        let lines = table
            .lines()
            .skip(1)
            .filter_map(|line| listener(line, state));
        sockets.extend(lines.map(|(port, inode)| Socket {
            protocol,
            port,
            process: holders.get(&inode).cloned(),
        }));
    }
    sockets
}

/// Port and inode of the socket on this line, if it is in this state: proc(5), `/proc/net/tcp`.
fn listener(line: &str, state: &str) -> Option<(u16, u64)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, _remote, found) = (words.next()?, words.next()?, words.next()?);
    let (_, port) = local.rsplit_once(':')?;
    let inode = words.nth(5)?.parse().ok()?;
    (found == state).then_some((u16::from_str_radix(port, 16).ok()?, inode))
}

/// The names of processes by the inodes of their sockets.
fn holders() -> HashMap<u64, String> {
    let mut holders = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = || fs::read_to_string(process.path().join("comm")).ok();
        let files = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten();
        let links = files.filter_map(|it| fs::read_link(it.ok()?.path()).ok());
        let sockets: Vec<_> = links
            .filter_map(|it| inode(&it.to_string_lossy()))
            .collect();
        if let Some(name) = (!sockets.is_empty()).then(name).flatten() {
            let name = name.trim_end();
            holders.extend(sockets.into_iter().map(|it| (it, name.to_owned())));
        }
    }
    holders
}

fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// The kernel's files, and the state in which somebody waits: `TCP_LISTEN`, and `TCP_CLOSE` for
/// what has no connections.
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
    fn line_of_a_listener_is_understood() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     \
                    0        0 12345 1 0000000000000000 100 0 0 10 0";
        assert_eq!(listener(line, "0A"), Some((8080, 12345)));
        assert_eq!(listener(line, "07"), None);
        assert_eq!(listener("", "0A"), None);
        assert_eq!(inode("socket:[12345]"), Some(12345));
        assert_eq!(inode("/dev/null"), None);
    }
}
