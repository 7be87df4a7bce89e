//! What was asked: the ports that the runtime wants forwarded.

use std::net::IpAddr;
use std::num::NonZeroU16;

use cni::{Error, Network};
use serde::Deserialize;

/// A port of the host that leads to one of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The host's port.
    pub host_port: NonZeroU16,
    /// The container's port.
    pub container_port: NonZeroU16,
    /// What runs over it.
    pub protocol: Protocol,
    /// The host's address; `None` for all of them.
    pub host_ip: Option<IpAddr>,
}

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// The mappings that `runtimeConfig.portMappings` asks for.
///
/// # Errors
/// Code 7, naming the key and its value.
pub(crate) fn mappings(network: &Network) -> Result<Vec<Mapping>, Error> {
    let _: RawConfig = network.config()?;
    parse(&network.runtime_config()?)
}

/// The plugin's own keys: they shape mappings, and mean nothing without any.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawConfig {
    snat: Option<bool>,
    masq_all: Option<bool>,
    mark_masq_bit: Option<u8>,
    external_set_mark_chain: Option<String>,
    backend: Option<String>,
    #[serde(rename = "conditionsV4")]
    conditions_v4: Option<Vec<String>>,
    #[serde(rename = "conditionsV6")]
    conditions_v6: Option<Vec<String>>,
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

fn parse(raw: &RuntimeConfig) -> Result<Vec<Mapping>, Error> {
    let mappings = raw.port_mappings.iter().enumerate().map(|(index, raw)| {
        let key = |key: &str| format!("runtimeConfig.portMappings[{index}].{key}");
        Ok(Mapping {
            host_port: port(raw.host_port, &key("hostPort"))?,
            container_port: port(raw.container_port, &key("containerPort"))?,
            protocol: protocol(&raw.protocol, &key("protocol"))?,
            host_ip: host_ip(&raw.host_ip, &key("hostIP"))?,
        })
    });
    mappings.collect()
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

/// Runtimes write "all addresses" in three ways.
fn host_ip(text: &str, key: &str) -> Result<Option<IpAddr>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(Some(address).filter(|address| !address.is_unspecified())),
        Err(error) => Err(Error::invalid(key, format!("{text:?}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(mapping: &serde_json::Value) -> Result<Vec<Mapping>, Error> {
        let document = json!({"PortMappings": [mapping]});
        parse(&cni::json::read(&document, "runtimeConfig")?.value)
    }

    #[test]
    fn mapping_is_read_as_every_runtime_writes_it() {
        let wanted = Mapping {
            host_port: NonZeroU16::new(8080).unwrap(),
            container_port: NonZeroU16::new(80).unwrap(),
            protocol: Protocol::Udp,
            host_ip: None,
        };
        for host_ip in ["", "0.0.0.0", "::"] {
            let mapping = json!({"HostPort": 8080, "ContainerPort": 80, "Protocol": "UDP", "HostIP": host_ip});
            assert_eq!(read(&mapping).unwrap(), [wanted]);
        }
        let one = json!({"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"});
        let one = read(&one).unwrap()[0];
        assert_eq!(
            (one.protocol, one.host_ip),
            (Protocol::Tcp, "192.0.2.1".parse().ok())
        );
    }

    #[test]
    fn mapping_that_makes_no_sense_is_refused_with_its_key() {
        for (mapping, key) in [
            (json!({"hostPort": 0, "containerPort": 80}), "hostPort: 0"),
            (
                json!({"hostPort": 1, "containerPort": 65536}),
                "containerPort: 65536",
            ),
            (
                json!({"hostPort": 1, "containerPort": 1, "protocol": "icmp"}),
                "protocol: \"icmp\"",
            ),
            (
                json!({"hostPort": 1, "containerPort": 1, "hostIP": "localhost"}),
                "hostIP: \"localhost\"",
            ),
        ] {
            let error = read(&mapping).unwrap_err();
            let expected = format!("runtimeConfig.portMappings[0].{key}");
            assert!(
                error.code() == 7 && error.to_string().starts_with(&expected),
                "{error}"
            );
        }
    }
}
