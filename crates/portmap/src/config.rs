//! What was asked: the ports that the runtime wants forwarded, and how.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use cni::{Error, Network, json, note};
use nft::IpVersion;
use serde::Deserialize;
use serde_json::Value;

use crate::conditions::Conditions;
use crate::raw::{Backend, RawConfig};

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `runtimeConfig.portMappings`; none: there is nothing to do.
    pub mappings: Vec<Mapping>,
    /// `snat` and `masqAll`.
    pub source_nat: SourceNat,
    /// `conditionsV4`
    pub conditions_v4: Conditions,
    /// `conditionsV6`
    pub conditions_v6: Conditions,
}

/// A port of the host that leads to one of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The host's port.
    pub host_port: NonZeroU16,
    /// The container's port.
    pub container_port: NonZeroU16,
    /// What runs over it.
    pub protocol: Protocol,
    /// Where on the host.
    pub host: HostAddress,
}

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// SCTP
    Sctp,
}

/// `hostIP`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostAddress {
    /// Nothing is said: every address of both families.
    Any,
    /// `0.0.0.0` or `::`, every address of one.
    AnyOf(IpVersion),
    /// This one.
    One(IpAddr),
}

/// Whose connections are from an address of the host when they come to the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceNat {
    /// Nobody's; 127.0.0.1 and the container itself do not reach the port then.
    None,
    /// Those whose answers would not find back.
    Needed,
    /// All.
    All,
}

impl Config {
    /// Reads what was asked.
    ///
    /// # Errors
    /// Code 7, naming the key and its value.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        let raw: RawConfig = network.config()?;
        let runtime: RuntimeConfig = network.runtime_config()?;
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
        let conditions = |key, version, text: &[String]| Conditions::parse(key, version, text);
        Ok(Self {
            mappings: mappings(&runtime)?,
            source_nat,
            conditions_v4: conditions("conditionsV4", IpVersion::V4, &raw.conditions_v4)?,
            conditions_v6: conditions("conditionsV6", IpVersion::V6, &raw.conditions_v6)?,
        })
    }

    /// Those of the packets of this version.
    pub fn conditions(&self, version: IpVersion) -> &Conditions {
        match version {
            IpVersion::V4 => &self.conditions_v4,
            IpVersion::V6 => &self.conditions_v6,
        }
    }
}

impl Protocol {
    /// Its number in a packet (IANA, "Assigned Internet Protocol Numbers").
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Returns the protocol with this number.
    pub fn of_number(number: u8) -> Option<Self> {
        let mut all = [Self::Tcp, Self::Udp, Self::Sctp].into_iter();
        all.find(|it| it.number() == number)
    }
}

impl HostAddress {
    /// It means packets of this version, too.
    pub fn is_of(self, version: IpVersion) -> bool {
        match self {
            Self::Any => true,
            Self::AnyOf(one) => one == version,
            Self::One(address) => version_of(address) == version,
        }
    }
}

pub(crate) fn version_of(address: IpAddr) -> IpVersion {
    match address {
        IpAddr::V4(_) => IpVersion::V4,
        IpAddr::V6(_) => IpVersion::V6,
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.protocol, self.host_port)?;
        match self.host {
            HostAddress::Any => Ok(()),
            HostAddress::AnyOf(IpVersion::V4) => f.write_str(" of every IPv4 address"),
            HostAddress::AnyOf(IpVersion::V6) => f.write_str(" of every IPv6 address"),
            HostAddress::One(address) => write!(f, " of {address}"),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<RawMapping>,
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

/// A node that switches must not break for a key that names a program or a means of it.
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
        note("backend: \"iptables\" is understood; nf_tables does it all the same");
    }
    if raw.external_set_mark_chain.is_some() {
        note("externalSetMarkChain does nothing: nf_tables masquerades without marks");
    }
    if raw.mark_masq_bit.is_some() {
        note("markMasqBit does nothing: nf_tables masquerades without marks");
    }
    Ok(())
}

fn mappings(raw: &RuntimeConfig) -> Result<Vec<Mapping>, Error> {
    let mappings = raw.port_mappings.iter().enumerate();
    let mappings = mappings
        .map(|(index, raw)| Mapping::of(raw, &format!("runtimeConfig.portMappings[{index}]")));
    let mappings = mappings.collect::<Result<Vec<_>, Error>>()?;
    let mut by_port: HashMap<_, Vec<Mapping>> = HashMap::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let port = (mapping.protocol, mapping.host_port);
        let before = by_port.entry(port).or_default();
        if let Some(other) = before.iter().find(|it| it.contradicts(*mapping)) {
            let key = format!("runtimeConfig.portMappings[{index}]");
            let ports = [other, mapping].map(|it| it.container_port);
            let reason = format!(
                "{mapping} cannot lead to both {} and {}",
                ports[0], ports[1]
            );
            return Err(Error::invalid(key, reason));
        }
        before.push(*mapping);
    }
    Ok(mappings)
}

impl Mapping {
    /// Reads an element of `portMappings`, whose keys are in any case.
    ///
    /// # Errors
    /// Code 7, with the key and its value.
    pub fn parse(value: &Value) -> Result<Self, Error> {
        let raw: RawMapping = json::read(value, "")?.value;
        Self::of(&raw, "portMappings[]")
    }

    /// Returns whether the host's addresses and the container's address `pod` have a family in common.
    pub fn is_for(&self, pod: IpAddr) -> bool {
        self.host.is_of(version_of(pod))
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

    /// Of two of one port: no packet could tell one from the other, and they lead to different
    /// ones.
    fn contradicts(self, other: Self) -> bool {
        let is_same_host = match (self.host, other.host) {
            (HostAddress::One(one), HostAddress::One(other)) => one == other,
            (HostAddress::One(_), _) | (_, HostAddress::One(_)) => false,
            (one, other) => [IpVersion::V4, IpVersion::V6]
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
    let address = text
        .parse::<IpAddr>()
        .map_err(|error| Error::invalid(key, format!("{text:?}: {error}")))?;
    match address.to_canonical() {
        address if address.is_unspecified() => Ok(HostAddress::AnyOf(version_of(address))),
        IpAddr::V6(address) if address.is_loopback() => {
            let reason = "::1: nothing that comes from ::1 can leave the host, so no container can answer it; 127.0.0.1 works";
            Err(Error::invalid(key, reason))
        }
        address => match kind_of_no_host(address) {
            Some(kind) => Err(Error::invalid(key, format!("{address} {kind}"))),
            None => Ok(HostAddress::One(address)),
        },
    }
}

/// Why no port of a host can be at `address`.
fn kind_of_no_host(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if is_link_local(address) => Some(
            "is link-local: it says nothing without a link, and the kernel forwards nothing from one link to another for it",
        ),
        _ if address.is_multicast() => Some("is a multicast address, which no host has"),
        IpAddr::V4(address) if address.is_broadcast() => {
            Some("is the broadcast address, which no host has")
        }
        _ => None,
    }
}

/// In 169.254.0.0/16 or `fe80::/10`.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// A mark has 32 bits.
const HIGHEST_BIT: u64 = 31;

#[cfg(test)]
mod tests;
