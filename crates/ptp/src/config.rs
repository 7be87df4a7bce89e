//! The configuration: its keys and the rules between them.

use attach::{KNOWN_ARGS, Masquerade, MtuChoice, RawMasquerade, asked_mac, dns};
use cni::result::Dns;
use cni::{CniArgs, Error, Network};
use netlink::MacAddress;

use crate::raw::RawConfig;

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// MTU of the veth pair.
    pub mtu: MtuChoice,
    /// Masquerading, if configured.
    pub masquerade: Option<Masquerade>,
    /// DNS settings that replace those of the IPAM plugin, if configured.
    pub dns: Option<Dns>,
    /// Requested MAC of the container's end.
    pub mac: Option<MacAddress>,
}

impl Config {
    /// Reads the configuration and `CNI_ARGS`.
    ///
    /// # Errors
    /// Codes 2, 4 and 7; the error names the key and the value.
    pub fn parse(network: &Network, args: &CniArgs) -> Result<Self, Error> {
        args.expect_only(KNOWN_ARGS)?;
        let config = Self::of_network(network)?;
        let mac = asked_mac(network, args)?;
        Ok(Self { mac, ..config })
    }

    /// Reads the keys that do not depend on the attachment.
    ///
    /// # Errors
    /// Codes 2 and 7; the error names the key and the value. Code 7: the network has no IPAM
    /// plugin.
    pub fn of_network(network: &Network) -> Result<Self, Error> {
        if network.ipam_type()?.is_none() {
            let reason = "required, because the host routes to leased addresses only; name an IPAM \
                          plugin, or use bridge for a link without addresses";
            return Err(Error::invalid("ipam", reason));
        }
        Self::try_from(network.config::<RawConfig>()?)
    }
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
            dns: dns(raw.dns),
            mac: None,
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
