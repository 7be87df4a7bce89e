//! The configuration: the ports that the runtime wants forwarded, and how.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU16;

use attach::Backend;
use cni::{Error, Network, json, keys, note};
use nft::{IpVersion, Protocol};
use serde::Deserialize;
use serde_json::Value;

use crate::conditions::Conditions;
use crate::networks::LINK_LOCAL;
use crate::{LocalhostGuard, RawConfig};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `runtimeConfig.portMappings`. If it is empty, the plugin has nothing to do.
    pub mappings: Vec<Mapping>,
    /// The clients that are masqueraded (`snat` and `masqAll`).
    pub source_nat: SourceNat,
    /// What keeps neighbours off 127.0.0.0/8 (`localhostGuard`).
    pub localhost_guard: LocalhostGuard,
    /// The packets for which ports are forwarded (`conditionsV4` and `conditionsV6`).
    pub conditions: Conditions,
}

/// A port of the host that is forwarded to a port of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display("{protocol} port {host_port}{host}")]
pub struct Mapping {
    /// `hostPort`.
    pub host_port: NonZeroU16,
    /// `containerPort`.
    pub container_port: NonZeroU16,
    /// `protocol`.
    pub protocol: Protocol,
    /// The addresses of the host on which the port is forwarded.
    pub host: HostAddress,
}

/// The addresses of the host on which a port is forwarded (`hostIP`). `Display` returns the end of
/// a phrase, such as ` of every IPv4 address`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum HostAddress {
    /// All addresses of both families: the key is missing or empty.
    #[display("")]
    Any,
    /// All addresses of one family: `0.0.0.0` or `::`.
    #[display(" of every {_0} address")]
    AnyOf(IpVersion),
    /// One address.
    #[display(" of {_0}")]
    One(IpAddr),
}

/// Which clients are masqueraded. The container sees an address of the host instead of the address
/// of a masqueraded client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceNat {
    /// No client. The port is then reachable neither from 127.0.0.1 nor from the container itself.
    None,
    /// Clients that need masquerading: without it, the container's answers to them would not pass
    /// through the host.
    Needed,
    /// All clients.
    All,
}

impl Config {
    /// Parses the network's configuration.
    ///
    /// # Errors
    /// Code 7: a value is invalid; the error names the key and the value.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        let raw: RawConfig = network.config()?;
        let asked: Vec<RawMapping> = network.key(MAPPINGS)?;
        note_what_is_done_otherwise(&raw)?;
        let source_nat = match (raw.snat, raw.masq_all) {
            (Some(false), masquerade_all) => {
                if masquerade_all {
                    note("masqAll does nothing with snat: false");
                }
                SourceNat::None
            }
            (_, false) => SourceNat::Needed,
            (_, true) => SourceNat::All,
        };
        Ok(Self {
            mappings: mappings(&asked)?,
            source_nat,
            localhost_guard: raw.localhost_guard,
            conditions: Conditions::parse(&raw)?,
        })
    }
}

impl HostAddress {
    /// Returns whether these addresses include an address of `version`.
    pub fn is_of(self, version: IpVersion) -> bool {
        match self {
            Self::Any => true,
            Self::AnyOf(one) => one == version,
            Self::One(address) => IpVersion::of(address) == version,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMapping {
    host_port: i64,
    container_port: i64,
    #[serde(default)]
    protocol: String,
    #[serde(default, rename = "hostIP")]
    host_ip: String,
}

/// Checks the keys that only concern iptables. Accepts them, because configurations of the Go
/// plugin have them, and reports on standard error that they have no effect.
///
/// # Errors
/// Code 7: `markMasqBit` is out of range, or conflicts with `externalSetMarkChain`.
fn note_what_is_done_otherwise(raw: &RawConfig) -> Result<(), Error> {
    if let Some(bit) = raw.mark_masq_bit.filter(|bit| *bit > HIGHEST_BIT) {
        let reason = format!("{bit} is not within 0 to {HIGHEST_BIT}");
        return Err(Error::invalid("markMasqBit", reason));
    }
    if raw.mark_masq_bit.is_some() && raw.external_set_mark_chain.is_some() {
        let reason = "cannot be set together with externalSetMarkChain, which sets the mark itself";
        return Err(Error::invalid("markMasqBit", reason));
    }
    if raw.backend == Backend::Iptables {
        note("backend: \"iptables\" has no effect: the plugin uses nf_tables");
    }
    if raw.external_set_mark_chain.is_some() {
        note("externalSetMarkChain does nothing: nf_tables masquerades without marks");
    }
    if raw.mark_masq_bit.is_some() {
        note("markMasqBit does nothing: nf_tables masquerades without marks");
    }
    Ok(())
}

fn mappings(raw: &[RawMapping]) -> Result<Vec<Mapping>, Error> {
    let mut mappings = Vec::new();
    let mut by_port: HashMap<_, Vec<Mapping>> = HashMap::new();
    for (index, raw) in raw.iter().enumerate() {
        let key = format!("{MAPPINGS}[{index}]");
        let mapping = Mapping::of(raw, &key)?;
        let port = (mapping.protocol, mapping.host_port);
        let before = by_port.entry(port).or_default();
        if let Some(other) = before.iter().find(|it| it.contradicts(mapping)) {
            let [one, two] = [other, &mapping].map(|it| it.container_port);
            let reason = format!("{mapping} cannot be forwarded to both {one} and {two}");
            return Err(Error::invalid(key, reason));
        }
        before.push(mapping);
        mappings.push(mapping);
    }
    Ok(mappings)
}

impl Mapping {
    /// Parses an element of `portMappings`. Its keys may be written in upper or lower case.
    ///
    /// # Errors
    /// Code 7: a value is invalid; the error names the key and the value.
    pub fn parse(value: &Value) -> Result<Self, Error> {
        let raw: RawMapping = json::read(value, "")?.value;
        Self::of(&raw, "portMappings[]")
    }

    /// Returns whether the mapping applies to the IP family of `pod`, the container's address. A
    /// mapping without `hostIP` applies to both families.
    pub fn is_for(&self, pod: IpAddr) -> bool {
        self.host.is_of(IpVersion::of(pod))
    }

    fn of(raw: &RawMapping, at: &str) -> Result<Self, Error> {
        let key = |key: &str| format!("{at}.{key}");
        Ok(Self {
            host_port: port(raw.host_port, &key("hostPort"))?,
            container_port: port(raw.container_port, &key("containerPort"))?,
            protocol: protocol(&raw.protocol, &key("protocol"))?,
            host: host_address(&raw.host_ip, &key("hostIP"))?,
        })
    }

    /// Returns whether both mappings are for the same address, or for all addresses of the same
    /// family, but forward to different ports of the container. The caller ensures that both have
    /// the same protocol and host port. A mapping for a single address does not contradict a
    /// mapping for all addresses, because the single address takes precedence.
    fn contradicts(self, other: Self) -> bool {
        let is_same_host = match (self.host, other.host) {
            (HostAddress::One(one), HostAddress::One(other)) => one == other,
            (HostAddress::One(_), _) | (_, HostAddress::One(_)) => false,
            (one, other) => IpVersion::ALL
                .into_iter()
                .any(|version| one.is_of(version) && other.is_of(version)),
        };
        is_same_host && self.container_port != other.container_port
    }
}

fn port(number: i64, key: &str) -> Result<NonZeroU16, Error> {
    let port = u16::try_from(number).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| Error::invalid(key, format!("{number} is not within 1 to 65535")))
}

fn protocol(text: &str, key: &str) -> Result<Protocol, Error> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" | "" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "sctp" => Ok(Protocol::Sctp),
        _ => Err(Error::invalid(
            key,
            format!("{text:?} is none of tcp, udp, sctp"),
        )),
    }
}

fn host_address(text: &str, key: &str) -> Result<HostAddress, Error> {
    if text.is_empty() {
        return Ok(HostAddress::Any);
    }
    match keys::parsed::<IpAddr>(text, key)?.to_canonical() {
        address if address.is_unspecified() => Ok(HostAddress::AnyOf(IpVersion::of(address))),
        IpAddr::V6(address) if address.is_loopback() => {
            let reason = "::1: packets from ::1 cannot leave the host, so no container can answer \
                          them; use 127.0.0.1";
            Err(Error::invalid(key, reason))
        }
        address => match kind_of_no_host(address) {
            Some(kind) => Err(Error::invalid(key, format!("{address} {kind}"))),
            None => Ok(HostAddress::One(address)),
        },
    }
}

/// Returns the reason why `address` cannot be an address of the host, as a part of the error
/// message. Returns `None` if it can be one.
fn kind_of_no_host(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if LINK_LOCAL.iter().any(|it| it.contains(address)) => Some(
            "is link-local: it is ambiguous without a link, and the kernel does not forward packets for it",
        ),
        _ if address.is_multicast() => Some("is a multicast address, which no host has"),
        IpAddr::V4(address) if address.is_broadcast() => {
            Some("is the broadcast address, which no host has")
        }
        _ => None,
    }
}

const HIGHEST_BIT: u64 = 31;

/// The ports that the runtime passes for the capability `portMappings`.
/// Returns whether a runtime may ask this entry of the list for ports. Another entry of the same list
/// may forward the ports of the attachment.
pub(crate) fn may_ask(network: &Network) -> Result<bool, Error> {
    let asked = network.key::<Option<Value>>(MAPPINGS)?;
    Ok(asked.is_some() || network.declares("portMappings"))
}

const MAPPINGS: &str = "runtimeConfig.portMappings";

#[cfg(test)]
mod tests;
