//! The configuration: which firewalls have to let the containers' packets pass, and which
//! containers may reach each other.

use cni::{Error, Network, json};
use serde_json::Value;

use crate::RawConfig;
pub use crate::raw::{Backend, IngressPolicy};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The firewalls that have to let packets pass (`backend`).
    pub backend: Backend,
    /// The zone of firewalld that gets the containers' addresses (`firewalldZone`).
    pub firewalld_zone: String,
    /// The chain of iptables that sees packets before this plugin accepts any
    /// (`iptablesAdminChainName`).
    pub admin_chain: String,
    /// The containers that a container accepts packets from (`ingressPolicy`).
    pub ingress_policy: IngressPolicy,
    /// The bit that marks permitted packets (`markBit`).
    pub mark: Mark,
}

/// The bit of a packet's fwmark that shows that the packet has permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    bit: u8,
}

impl Config {
    /// Parses the network's configuration.
    ///
    /// # Errors
    /// Code 7: a value is invalid; the error names the key and the value.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        Self::of(network.config()?)
    }

    /// Parses the plugin's keys from the plugin's object in a network configuration list.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn read(keys: &Value) -> Result<Self, Error> {
        Self::of(json::read(keys, "")?.value)
    }

    /// Returns whether `backend` permits or requires that ADD adds the container's addresses to a
    /// zone of firewalld. If `backend` is not set, ADD does so only while firewalld runs.
    pub fn asks_firewalld(&self) -> bool {
        matches!(self.backend, Backend::Unset | Backend::Firewalld)
    }

    fn of(raw: RawConfig) -> Result<Self, Error> {
        Ok(Self {
            backend: raw.backend,
            firewalld_zone: zone(raw.firewalld_zone)?,
            admin_chain: admin_chain(raw.iptables_admin_chain_name)?,
            ingress_policy: raw.ingress_policy,
            mark: raw.mark_bit.map_or(Ok(Mark::DEFAULT), Mark::of_bit)?,
        })
    }
}

impl Mark {
    /// The default bit. It is the only bit that neither Calico (`0xffff0000`), Cilium
    /// (`0xffff0fff`), kube-proxy (`0xc000`) nor the Go plugin `portmap` (`0x2000`) uses by
    /// default.
    pub const DEFAULT: Self = Self { bit: 12 };

    fn of_bit(bit: u64) -> Result<Self, Error> {
        let refused = |reason: String| Error::invalid("markBit", reason);
        if let Some((_, user)) = TAKEN.iter().find(|(taken, _)| *taken == bit) {
            return Err(refused(format!("{bit} is the bit of {user}")));
        }
        let bit = u8::try_from(bit).ok().filter(|bit| *bit <= HIGHEST_BIT);
        let bit = bit.ok_or_else(|| refused(format!("not within 0 to {HIGHEST_BIT}")))?;
        Ok(Self { bit })
    }

    /// Returns the number of the bit, from 0 to 31.
    pub fn bit(self) -> u8 {
        self.bit
    }

    /// Returns the fwmark in which only this bit is set.
    pub fn bits(self) -> u32 {
        1 << self.bit
    }
}

fn zone(name: Option<String>) -> Result<String, Error> {
    let name = name.filter(|it| !it.is_empty());
    let name = name.unwrap_or_else(|| ZONE.to_owned());
    if name.chars().all(|c| c.is_ascii_graphic()) {
        return Ok(name);
    }
    let reason = format!("{name:?} has a character that no zone's name has");
    Err(Error::invalid("firewalldZone", reason))
}

/// Returns the name of the operator's chain (`iptablesAdminChainName`), or the default for a
/// missing or empty `name`. Rejects names that iptables does not accept or uses itself, and the
/// name of this plugin's chain. Also rejects names that `nft -f` cannot read from the output of
/// `nft list ruleset`, because nft prints names without quotation marks.
fn admin_chain(name: Option<String>) -> Result<String, Error> {
    let name = name.filter(|it| !it.is_empty());
    let name = name.unwrap_or_else(|| ADMIN_CHAIN.to_owned());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let problem = match name.as_str() {
        _ if name.len() > LONGEST_CHAIN_NAME || !starts_well || !name.chars().all(is_plain) => {
            "iptables or nft would not read it back; use a letter or _, then letters, digits, _, - and ., up to 28 in all"
        }
        "INPUT" | "FORWARD" | "OUTPUT" | CHAIN => "this chain is in use itself; use another name",
        "ACCEPT" | "DROP" | "QUEUE" | "RETURN" | "REJECT" => {
            "this is a target of iptables; use another name"
        }
        word if NFT_WORDS.split(' ').any(|it| it == word) => {
            "this is a keyword of nft, which would not read it back; use another name, such as one in capitals"
        }
        _ => return Ok(name),
    };
    let reason = format!("{name:?}: {problem}");
    Err(Error::invalid("iptablesAdminChainName", reason))
}

/// The chain that this plugin adds to the tables of iptables.
pub const CHAIN: &str = "CNI-FORWARD";

const ZONE: &str = "trusted";

const ADMIN_CHAIN: &str = "CNI-ADMIN";

/// `XT_EXTENSION_MAXNAMELEN` minus 1 for the terminating zero.
const LONGEST_CHAIN_NAME: usize = 28;

/// Keywords that nft 1.0.6 does not accept as the name of a chain, and `destroy`, which nft 1.0.7
/// added.
const NFT_WORDS: &str = "\
    accept add ah all and arp auto-merge bridge cgroup chain comment comp constant continue \
    counter cpu create ct day dccp define delete describe destroy device devices dnat drop dst \
    dup dynamic ecn element elements eq esp ether exists expires export exthdr fib flags flow \
    flowtable flush frag fwd gc-interval ge get goto gt handle hbh hook hour ibriport ibrname \
    icmp icmpv6 igmp iif iifgroup iifname iiftype import include index inet insert interval ip \
    ip6 ipsec jhash jump le limit list log lshift lt map mark masquerade meta meter mh missing \
    monitor ne netdev nftrace not notrack numgen obriport obrname offload oif oifgroup oifname \
    oiftype or osf pkttype policy position priority queue quota random redefine redirect reject \
    rename replace reset return rshift rt rt0 rt2 rtclassid rule ruleset sctp secmark set size \
    skgid skuid snat socket srh symhash synproxy table tcp th time timeout tproxy type typeof udp \
    udplite undefine update vlan vmap xor xt";

const HIGHEST_BIT: u8 = 31;

/// Bits of the fwmark that other programs use on most nodes with containers.
const TAKEN: [(u64, &str); 3] = [
    (13, "the Go plugin portmap"),
    (14, "kube-proxy (masquerading)"),
    (15, "kube-proxy (dropping)"),
];

#[cfg(test)]
mod tests;
