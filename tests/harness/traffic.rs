//! Datagrams and connections between two places.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::place::Place;

/// How long a datagram may be on its way inside one machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// A datagram from `client` to `address`, where `server` is, comes back.
pub fn udp(client: &impl Place, server: &impl Place, address: &str) -> bool {
    let address: IpAddr = address.parse().unwrap();
    let listening = server.enter(|| UdpSocket::bind(SocketAddr::new(address, 0)).unwrap());
    listening.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = listening.local_addr().unwrap();
    let calling = client.enter(|| UdpSocket::bind(unspecified(address)).unwrap());
    calling.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 16];
    if calling.send_to(b"ping", target).is_err() {
        return false;
    }
    let Ok((_, from)) = listening.recv_from(&mut buffer) else {
        return false;
    };
    listening.send_to(b"pong", from).is_ok() && calling.recv(&mut buffer).is_ok()
}

/// A connection from `client` to `address`, where `server` is, carries both ways. Hands
/// back the address that the server saw.
pub fn tcp(client: &impl Place, server: &impl Place, address: &str) -> Option<IpAddr> {
    let address: IpAddr = address.parse().unwrap();
    let listening = server.enter(|| TcpListener::bind(SocketAddr::new(address, 0)).unwrap());
    let target = listening.local_addr().unwrap();
    let calling = client.enter(|| TcpStream::connect_timeout(&target, PATIENCE));
    let mut calling = calling.ok()?;
    let (mut accepted, from) = listening.accept().ok()?;
    calling.set_read_timeout(Some(PATIENCE)).unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 4];
    calling.write_all(b"ping").ok()?;
    accepted.read_exact(&mut buffer).ok()?;
    accepted.write_all(b"pong").ok()?;
    calling.read_exact(&mut buffer).ok()?;
    Some(from.ip())
}

fn unspecified(like: IpAddr) -> SocketAddr {
    let any = if like.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    any.parse().unwrap()
}
