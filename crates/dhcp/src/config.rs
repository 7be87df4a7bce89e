//! The configuration: the `ipam` section and `CNI_ARGS`.

use std::collections::HashSet;
use std::path::PathBuf;

use cni::{CniArgs, Error, Network, keys};
use serde::{Deserialize, Serialize};

use crate::raw::{RawConfig, RawProvide, RawRequest};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Options of the messages to the server.
    pub options: Options,
    /// Metric of the routes; 0 for none.
    pub priority: u32,
}

/// Options of the messages to a server, besides those that the protocol needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Number and value of each option for the server.
    pub provided: Vec<(u8, Vec<u8>)>,
    /// Numbers of the options that the server is asked for.
    pub requested: Vec<u8>,
}

impl Config {
    /// Reads the `ipam` section.
    ///
    /// # Errors
    /// - Code 2: an option is unknown.
    /// - Code 7: a value is invalid or too long; the error names its key.
    pub fn parse(network: &Network, args: &CniArgs) -> Result<Self, Error> {
        Self::new(&network.ipam()?, args)
    }

    pub(crate) fn new(raw: &RawConfig, args: &CniArgs) -> Result<Self, Error> {
        Ok(Self {
            socket: socket_path(&raw.daemon_socket_path)?,
            options: Options {
                provided: provided(&raw.provide, args)?,
                requested: requested(&raw.request)?,
            },
            priority: raw.priority,
        })
    }
}

/// Returns the daemon's socket, and reads no other key: DEL and GC work with a wrong configuration.
pub(crate) fn socket(network: &Network) -> Result<PathBuf, Error> {
    let raw: RawConfig = network.ipam_keys(&["daemonSocketPath"])?;
    socket_path(&raw.daemon_socket_path)
}

pub(crate) fn socket_path(path: &str) -> Result<PathBuf, Error> {
    keys::absolute(path, SOCKET, "ipam.daemonSocketPath")
}

/// Returns the options for the server. As in the Go plugin, an empty `value` provides nothing, and a
/// value of `CNI_ARGS` replaces `value`.
fn provided(raw: &[RawProvide], args: &CniArgs) -> Result<Vec<(u8, Vec<u8>)>, Error> {
    let mut options: Vec<(u8, Vec<u8>)> = Vec::new();
    for (index, raw) in raw.iter().enumerate() {
        let at = format!("ipam.provide[{index}]");
        let code = code(&raw.option, &at)?;
        let of_args = args.value(&raw.from_arg);
        let value = of_args.or_else(|| Some(raw.value.as_str()).filter(|it| !it.is_empty()));
        let Some(value) = value else { continue };
        if value.len() > LONGEST {
            let reason = format!("{} bytes: an option has at most {LONGEST}", value.len());
            return Err(Error::invalid(format!("{at}.value"), reason));
        }
        options.push((code, value.as_bytes().to_vec()));
    }
    Ok(options)
}

fn requested(raw: &[RawRequest]) -> Result<Vec<u8>, Error> {
    let mut codes = Vec::new();
    for (index, raw) in raw.iter().enumerate() {
        if !raw.option.is_empty() {
            codes.push(code(&raw.option, &format!("ipam.request[{index}]"))?);
        }
    }
    if !raw.iter().any(|it| it.skip_default) {
        codes.extend([ROUTERS, SUBNET_MASK]);
    }
    let mut seen = HashSet::new();
    codes.retain(|code| seen.insert(*code));
    Ok(codes)
}

/// Returns the number of an option, which the operator gave by number or by its name in
/// dhcp-options(5).
fn code(option: &str, at: &str) -> Result<u8, Error> {
    let known = NAMES.iter().find(|(name, _)| *name == option);
    let number = || option.parse().ok().filter(|it| (1..=254).contains(it));
    known.map(|(_, code)| *code).or_else(number).ok_or_else(|| {
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        Error::UnsupportedField {
            key: format!("{at}.option"),
            value: format!("{option:?}"),
            reason: format!(
                "give its number, from 1 to 254, or one of {}",
                names.join(", ")
            ),
        }
    })
}

/// Names of options that the Go plugin knows.
const NAMES: &[(&str, u8)] = &[
    ("dhcp-client-identifier", 61),
    ("subnet-mask", SUBNET_MASK),
    ("routers", ROUTERS),
    ("host-name", 12),
    ("user-class", 77),
    ("vendor-class-identifier", 60),
];

const SUBNET_MASK: u8 = 1;
const ROUTERS: u8 = 3;

/// Longest value of an option in bytes: its length is one byte.
const LONGEST: usize = 255;

/// Default of `daemonSocketPath`, and of the daemon's flag `-socketpath`.
pub(crate) const SOCKET: &str = "/run/cni/dhcp.sock";
