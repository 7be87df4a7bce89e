//! Both ends of the test traffic of `scripts/e2e.sh`: the only program of its image, and its
//! client.
//!
//! ```text
//! peer serve [NAME]               answers at TCP port 80 and UDP port 53
//! peer ask tcp|udp ADDRESS        prints the answer: the server's name, its host's by default, and whom it saw
//! peer pull ADDRESS SECONDS       prints how fast the server's bytes come, in bit/s
//! ```

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["serve"] => hostname().and_then(|name| serve(&name)),
        ["serve", name] => serve(name),
        ["ask", "tcp", address] => ask_tcp(address).and_then(|it| print(&it)),
        ["ask", "udp", address] => ask_udp(address).and_then(|it| print(&it)),
        ["pull", address, seconds] => pull(address, seconds).and_then(|it| print(&it)),
        _ => Err(io::Error::other(
            "peer serve [NAME] | ask tcp|udp ADDRESS | pull ADDRESS SECONDS",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "peer: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn hostname() -> io::Result<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(name.trim_end().to_owned())
}

fn serve(name: &str) -> io::Result<()> {
    // Binds both families, or IPv4 if the kernel has only that.
    let connections = TcpListener::bind("[::]:80").or_else(|_| TcpListener::bind("0.0.0.0:80"))?;
    let datagrams = UdpSocket::bind("[::]:53").or_else(|_| UdpSocket::bind("0.0.0.0:53"))?;
    thread::scope(|scope| {
        scope.spawn(move || answer_datagrams(&datagrams, name));
        for connection in connections.incoming() {
            scope.spawn(move || connection.and_then(|it| answer(it, name)));
        }
    });
    Ok(())
}

fn answer_datagrams(socket: &UdpSocket, name: &str) {
    let mut datagram = [0; 64];
    loop {
        // Errors belong to earlier answers to clients that no longer exist.
        if let Ok((_, client)) = socket.recv_from(&mut datagram) {
            drop(socket.send_to(saw(name, client).as_bytes(), client));
        }
    }
}

/// Answers by the client's first byte: `s` requests endless data.
fn answer(mut connection: TcpStream, name: &str) -> io::Result<()> {
    let mut mode = [0];
    connection.read_exact(&mut mode)?;
    if &mode == b"s" {
        return send_until_closed(&mut connection);
    }
    let client = connection.peer_addr()?;
    connection.write_all(saw(name, client).as_bytes())
}

fn saw(name: &str, client: SocketAddr) -> String {
    format!("{name} {}", client.ip().to_canonical())
}

fn ask_tcp(address: &str) -> io::Result<String> {
    let mut connection = connect(address)?;
    connection.write_all(b"?")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

fn ask_udp(address: &str) -> io::Result<String> {
    let address = resolve(address)?;
    let any = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any)?;
    // An answer from another address does not count.
    socket.connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"?")?;
    let mut answer = [0; 256];
    let length = socket.recv(&mut answer)?;
    let answer = answer.get(..length).unwrap_or_default();
    Ok(String::from_utf8_lossy(answer).into_owned())
}

/// Returns the server's rate in bit/s. The client counts, because sent data may still be in a
/// buffer.
fn pull(address: &str, seconds: &str) -> io::Result<String> {
    let seconds = seconds.parse().map_err(io::Error::other)?;
    let mut connection = connect(address)?;
    connection.write_all(b"s")?;
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let mut bytes = 0;
    while start.elapsed() < time {
        match connection.read(&mut [0; BLOCK])? {
            0 => return Err(ErrorKind::ConnectionAborted.into()),
            more => bytes += more as u128,
        }
    }
    let milliseconds = start.elapsed().as_millis().max(1);
    Ok((bytes * 8 * 1000 / milliseconds).to_string())
}

fn send_until_closed(connection: &mut TcpStream) -> io::Result<()> {
    loop {
        connection.write_all(&[0; BLOCK])?;
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&resolve(address)?, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

fn resolve(address: &str) -> io::Result<SocketAddr> {
    let mut addresses = address.to_socket_addrs()?;
    addresses
        .next()
        .ok_or_else(|| io::Error::other("no address"))
}

fn print(text: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Longest time of a packet within one machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes per write or read.
const BLOCK: usize = 16 * 1024;
