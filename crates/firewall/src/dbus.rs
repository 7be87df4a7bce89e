//! A minimal D-Bus client: calls methods with text arguments on programs of the system bus.
//!
//! It implements the sections "Authentication Protocol" and "Message Format" of the "D-Bus
//! Specification".

use std::env;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection to the system bus.
pub(crate) struct Bus {
    stream: UnixStream,
    serial: u32,
}

/// The object whose method a call runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'a> {
    pub name: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
}

/// An answer to a call.
pub(crate) enum Answer {
    /// The body of a method's result.
    Result(Vec<u8>),
    /// The text of an error.
    Error(String),
}

impl Bus {
    /// Connects to the system bus as this process's user.
    ///
    /// # Errors
    /// There is no bus, or it does not answer.
    pub fn connect() -> io::Result<Self> {
        let address = env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        let path = address
            .split(',')
            .next()
            .and_then(|it| it.strip_prefix("unix:path="));
        let stream = UnixStream::connect(path.unwrap_or(SYSTEM_BUS))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut bus = Self { stream, serial: 0 };
        // The message names no user, because the bus reads it from the socket.
        bus.stream
            .write_all(b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n")?;
        for expected in ["DATA", "OK "] {
            let line = bus.line()?;
            if !line.starts_with(expected) {
                return Err(io::Error::other(format!(
                    "the bus refuses this user: {line}"
                )));
            }
        }
        bus.call(BUS, "Hello", &[])?;
        Ok(bus)
    }

    /// Returns whether a program on the bus has this name.
    ///
    /// # Errors
    /// The bus does not answer.
    pub fn has_owner(&mut self, name: &str) -> io::Result<bool> {
        let answer = self.call(BUS, "NameHasOwner", &[name])?;
        Ok(answer.is_true())
    }

    /// Calls a method of `object` with `words` as arguments. Waits for the answer.
    ///
    /// # Errors
    /// The bus does not answer, or sends something other than a message.
    pub fn call(&mut self, object: Object<'_>, method: &str, words: &[&str]) -> io::Result<Answer> {
        self.serial += 1;
        let message = message(self.serial, (object, method), words);
        self.stream.write_all(&message)?;
        loop {
            let (header, body) = self.receive()?;
            if let Some(answer) = header.answer_to(self.serial, body) {
                return Ok(answer);
            }
        }
    }

    fn receive(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut start = [0; 16];
        self.stream.read_exact(&mut start)?;
        let [endian, kind, ..] = start;
        let number = |at: usize| read_number(start.get(at..).unwrap_or_default(), endian);
        let lengths = (number(4), number(12));
        let (Some(body), Some(fields)) = lengths else {
            return Err(ErrorKind::InvalidData.into());
        };
        if body.max(fields) > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut rest = vec![0; (fields as usize).next_multiple_of(8) + body as usize];
        self.stream.read_exact(&mut rest)?;
        let body = rest.split_off((fields as usize).next_multiple_of(8));
        let reply_to = reply_serial(&rest, endian);
        Ok((
            Header {
                kind,
                endian,
                reply_to,
            },
            body,
        ))
    }

    fn line(&mut self) -> io::Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\r\n") && line.len() < LONGEST_LINE {
            self.stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

impl Answer {
    /// Returns whether the answer is the result `true`.
    pub fn is_true(&self) -> bool {
        matches!(self, Self::Result(body) if body.first_chunk::<4>().is_some_and(|it| *it != [0; 4]))
    }
}

/// The parts of a received message's header that this client needs.
struct Header {
    kind: u8,
    endian: u8,
    reply_to: Option<u32>,
}

impl Header {
    fn answer_to(&self, serial: u32, body: Vec<u8>) -> Option<Answer> {
        match self.kind {
            _ if self.reply_to != Some(serial) => None,
            RESULT => Some(Answer::Result(body)),
            ERROR => Some(Answer::Error(text(&body, self.endian).unwrap_or_default())),
            _ => None,
        }
    }
}

/// Encodes a call with text arguments as a little-endian message.
fn message(serial: u32, (object, method): (Object<'_>, &str), words: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for word in words {
        append_text(&mut body, word);
    }
    let signature = "s".repeat(words.len());
    let mut fields = Vec::new();
    for (code, kind, value) in [
        (1, b'o', object.path),
        (2, b's', object.interface),
        (3, b's', method),
        (6, b's', object.name),
    ] {
        align(&mut fields, 8);
        fields.extend([code, 1, kind, 0]);
        append_text(&mut fields, value);
    }
    align(&mut fields, 8);
    // The length of a signature takes one byte.
    fields.extend([8, 1, b'g', 0, u8::try_from(words.len()).unwrap_or_default()]);
    fields.extend(signature.bytes().chain([0]));
    let mut message = vec![LITTLE, CALL, 0, VERSION];
    for number in [length(&body), serial, length(&fields)] {
        message.extend(number.to_le_bytes());
    }
    message.extend(fields);
    align(&mut message, 8);
    message.extend(body);
    message
}

fn append_text(bytes: &mut Vec<u8>, text: &str) {
    align(bytes, 4);
    bytes.extend(length(text.as_bytes()).to_le_bytes());
    bytes.extend(text.bytes().chain([0]));
}

fn align(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Returns the serial number of the call that a message answers, from the fields of the message's
/// header.
fn reply_serial(fields: &[u8], endian: u8) -> Option<u32> {
    let mut at = 0;
    while let Some([code, 1, kind, 0]) = fields.get(at..)?.first_chunk::<4>() {
        let value = fields.get(at + 4..)?;
        match (*code, *kind) {
            (REPLY_SERIAL, b'u') => return read_number(value, endian),
            (_, b'g') => at += 4 + 1 + usize::from(*value.first()?) + 1,
            (_, b's' | b'o') => at += 4 + 4 + read_number(value, endian)? as usize + 1,
            (_, b'u') => at += 4 + 4,
            _ => return None,
        }
        at = at.next_multiple_of(8);
    }
    None
}

fn text(body: &[u8], endian: u8) -> Option<String> {
    let end = 4 + read_number(body, endian)? as usize;
    Some(String::from_utf8_lossy(body.get(4..end)?).into_owned())
}

fn read_number(bytes: &[u8], endian: u8) -> Option<u32> {
    let bytes = *bytes.first_chunk()?;
    Some(if endian == LITTLE {
        u32::from_le_bytes(bytes)
    } else {
        u32::from_be_bytes(bytes)
    })
}

/// The bus itself.
const BUS: Object<'_> = Object {
    name: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};

const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

const LITTLE: u8 = b'l';
const VERSION: u8 = 1;

/// Message types, and the code of the header field `REPLY_SERIAL`.
const CALL: u8 = 1;
const RESULT: u8 = 2;
const ERROR: u8 = 3;
const REPLY_SERIAL: u8 = 5;

/// Maximum length of a message and of a line of the authentication, in bytes.
const LONGEST: u32 = 1 << 20;
const LONGEST_LINE: usize = 4096;

/// Maximum time to wait for an answer. firewalld does not answer while it loads all rules.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_has_the_form_of_the_specification() {
        let call = message(7, (BUS, "NameHasOwner"), &["a.b"]);
        assert_eq!(call.len() % 8, 0);
        assert_eq!(call[..8], [b'l', 1, 0, 1, 8, 0, 0, 0]);
        assert!(call.ends_with(b"\x03\0\0\0a.b\0"));
        let signature = b"\x08\x01g\0\x01s\0";
        assert!(call.windows(signature.len()).any(|it| it == signature));
    }

    #[test]
    fn torn_fields_name_no_call() {
        let fields = [
            1, 1, b's', 0, 1, 0, 0, 0, b'a', 0, 0, 0, 0, 0, 0, 0, 5, 1, b'u', 0, 7, 0, 0, 0,
        ];
        assert_eq!(reply_serial(&fields, b'l'), Some(7));
        for end in 0..fields.len() {
            assert_eq!(reply_serial(&fields[..end], b'l'), None, "{end}");
        }
        assert_eq!(
            reply_serial(&[1, 1, b's', 0, 255, 255, 255, 255], b'l'),
            None
        );
        assert_eq!(text(&[9, 0, 0, 0, b'a'], b'l'), None);
    }
}
