//! The configuration: its keys and the rules between them.

use attach::{Masquerade, MtuChoice, RawMasquerade, dns};
use cni::Error;
use cni::result::Dns;

use crate::raw::RawConfig;

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// MTU of the veth pair.
    pub mtu: MtuChoice,
    /// Masquerading, if configured.
    pub masquerade: Option<Masquerade>,
    /// Whether the container's interface accepts router advertisements.
    pub accept_ra: bool,
    /// DNS settings that replace those of the IPAM plugin, if configured.
    pub dns: Option<Dns>,
}

impl TryFrom<RawConfig> for Config {
    type Error = Error;

    fn try_from(raw: RawConfig) -> Result<Self, Error> {
        let masquerade = RawMasquerade {
            is_asked: raw.ip_masq,
            backend: raw.ip_masq_backend,
            is_random: raw.ip_masq_random_fully,
            exempt: raw.non_masquerade_cidrs,
        };
        Ok(Self {
            mtu: MtuChoice::parse(raw.mtu, raw.mtu_overhead)?,
            masquerade: Masquerade::parse(&masquerade)?,
            accept_ra: raw.accept_ra,
            dns: dns(raw.dns),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(keys: &Value) -> Result<Config, Error> {
        let raw: RawConfig = cni::json::read(keys, "")?.value;
        Config::try_from(raw)
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let config = config(&json!({})).unwrap();
        assert_eq!(config.mtu, MtuChoice::Detect { overhead: 0 });
        assert_eq!((config.masquerade, config.dns), (None, None));
    }

    #[test]
    fn keys_are_read_in_any_case() {
        let config = config(&json!({
            "MTU": 1400, "IpMasq": true, "ipmasqbackend": "iptables",
            "nonMasqueradeCIDRs": ["10.0.0.0/8"], "dns": {"nameservers": []},
        }));
        let config = config.unwrap();
        assert_eq!(config.mtu, MtuChoice::Asked(1400));
        assert!(config.masquerade.is_some() && config.dns.is_some());
    }
}
