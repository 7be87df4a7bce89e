//! `conditionsV4` and `conditionsV6`: the packets for which the ports of a network are forwarded.
//!
//! The conditions have the syntax of nft(8), of which this module supports a part: source and
//! destination address, input interface, fwmark, and the negation of each.

use std::array;

use cni::{Error, hex};
use ipnetwork::IpNetwork;
use nft::{Field, IpVersion, Rule};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::raw::RawConfig;

/// The conditions (`conditionsV4`, `conditionsV6`) for packets to the ports of a network, as one
/// list for each IP version. A packet is forwarded only if it meets all conditions of its version.
/// An empty list matches every packet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    #[serde(rename = "conditions_v4", skip_serializing_if = "Vec::is_empty")]
    v4: Vec<Condition>,
    #[serde(rename = "conditions_v6", skip_serializing_if = "Vec::is_empty")]
    v6: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Condition {
    subject: Subject,
    sense: Sense,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Subject {
    Source(IpNetwork),
    Destination(IpNetwork),
    InputName(String),
    Mark(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Sense {
    Is,
    IsNot,
}

impl Conditions {
    /// Parses `conditionsV4` and `conditionsV6`.
    ///
    /// # Errors
    /// Code 7: a word is not supported; the error names it.
    pub fn parse(raw: &RawConfig) -> Result<Self, Error> {
        Ok(Self {
            v4: Condition::parse("conditionsV4", IpVersion::V4, &raw.conditions_v4)?,
            v6: Condition::parse("conditionsV6", IpVersion::V6, &raw.conditions_v6)?,
        })
    }

    fn of(&self, version: IpVersion) -> &[Condition] {
        match version {
            IpVersion::V4 => &self.v4,
            IpVersion::V6 => &self.v6,
        }
    }

    /// Returns `rule`, limited to packets that meet all conditions for `version`; `None` if there
    /// are no conditions for `version`.
    pub fn narrow(&self, version: IpVersion, rule: Rule) -> Option<Rule> {
        let conditions = self.of(version);
        let narrow = || conditions.iter().fold(rule, |rule, it| it.narrow(rule));
        (!conditions.is_empty()).then(narrow)
    }

    /// Returns twelve hexadecimal digits that identify the conditions for packets of `version`. The
    /// name of the chain that checks these conditions contains the digits.
    pub fn hash(&self, version: IpVersion) -> String {
        let digest = Sha256::digest(format!("{version:?} {:?}", self.of(version)));
        hex(&digest, 12)
    }
}

impl Condition {
    /// Parses the strings `words`, the value of `key`, as conditions for packets of `version`. As
    /// in the Go plugin, several strings may form one condition: `["ip saddr", "10.0.0.0/8"]`.
    fn parse(key: &str, version: IpVersion, words: &[String]) -> Result<Vec<Self>, Error> {
        let text = words.join(" ");
        let invalid = |reason| Error::invalid(key, format!("{text:?}: {reason}"));
        let mut words = text.split_whitespace().peekable();
        let mut conditions = Vec::new();
        while let Some(word) = words.next() {
            let subject = match word {
                "ip" | "ip6" | "meta" => format!("{word} {}", words.next().unwrap_or_default()),
                word => word.to_owned(),
            };
            let sense = match words.peek().copied() {
                Some("!=" | "ne") => Sense::IsNot,
                _ => Sense::Is,
            };
            words.next_if(|word| ["!=", "==", "eq", "ne"].contains(word));
            let value = words.next();
            let subject = Subject::parse(version, &subject, value.unwrap_or_default());
            conditions.push(Self {
                subject: subject.map_err(invalid)?,
                sense,
            });
        }
        Ok(conditions)
    }

    fn narrow(&self, rule: Rule) -> Rule {
        let field = |field, value: &[u8]| match self.sense {
            Sense::Is => rule.clone().when(field, value),
            Sense::IsNot => rule.clone().unless(field, value),
        };
        match (&self.subject, self.sense) {
            (Subject::Source(network), Sense::Is) => rule.when_from(*network),
            (Subject::Source(network), Sense::IsNot) => rule.unless_from(*network),
            (Subject::Destination(network), Sense::Is) => rule.when_to(*network),
            (Subject::Destination(network), Sense::IsNot) => rule.unless_to(*network),
            (Subject::InputName(name), _) => field(Field::InputName, &padded(name)),
            (Subject::Mark(mark), _) => field(Field::Mark, &mark.to_ne_bytes()),
        }
    }
}

impl Subject {
    fn parse(version: IpVersion, subject: &str, value: &str) -> Result<Self, String> {
        let (v4, v6) = (version == IpVersion::V4, version == IpVersion::V6);
        match subject {
            "ip saddr" if v4 => Ok(Self::Source(network(version, value)?)),
            "ip daddr" if v4 => Ok(Self::Destination(network(version, value)?)),
            "ip6 saddr" if v6 => Ok(Self::Source(network(version, value)?)),
            "ip6 daddr" if v6 => Ok(Self::Destination(network(version, value)?)),
            "iifname" | "meta iifname" => Ok(Self::InputName(link_name(value)?)),
            "mark" | "meta mark" => Ok(Self::Mark(mark(value)?)),
            _ if subject.starts_with(['-', '!']) => Err(format!(
                "{subject} is iptables syntax; write it in the syntax of nft(8): \"-d A\" is \"ip \
                 daddr A\", \"! -s A\" is \"ip saddr != A\", \"-i NAME\" is \"iifname NAME\", \"-m \
                 mark --mark N\" is \"meta mark N\""
            )),
            _ => Err(format!(
                "{subject:?} is not supported; supported are {SUPPORTED} each also with !="
            )),
        }
    }
}

fn network(version: IpVersion, text: &str) -> Result<IpNetwork, String> {
    let network: IpNetwork = text
        .parse()
        .map_err(|error| format!("{text:?} is no address or prefix: {error}"))?;
    if IpVersion::of(network.ip()) == version {
        return Ok(network);
    }
    Err(format!("{network} is of the other family"))
}

/// Parses the name of an interface, with or without quotes as in nft(8). Rejects a name with `*`:
/// nft(8) would match any suffix in its place, which this module does not support.
fn link_name(text: &str) -> Result<String, String> {
    let name = text.trim_matches('"');
    let parsed = name.parse::<cni::InterfaceName>();
    match parsed {
        Ok(_) if !name.contains('*') => Ok(name.to_owned()),
        Ok(_) => Err(format!("{text}: patterns of names are not supported")),
        Err(error) => Err(error.to_string()),
    }
}

fn mark(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("mark {text:?}: {error}"))
}

/// Returns the name of an interface in the form that the kernel compares: 16 bytes (`IFNAMSIZ`),
/// filled up with zeros.
pub(crate) fn padded(name: &str) -> [u8; 16] {
    let letters = name.as_bytes();
    array::from_fn(|index| letters.get(index).copied().unwrap_or_default())
}

const SUPPORTED: &str = "\"ip saddr\", \"ip daddr\", \"ip6 saddr\" and \"ip6 daddr\" with an \
                         address or prefix (ip in conditionsV4, ip6 in conditionsV6), \"iifname\" \
                         with a link's name, \"meta mark\" with a number,";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(version: IpVersion, words: &[&str]) -> Result<Vec<Condition>, Error> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        Condition::parse("conditionsV4", version, &words)
    }

    #[test]
    fn conditions_are_read_however_they_are_spread_over_strings() {
        let wanted = [
            Condition {
                subject: Subject::Destination("10.96.0.0/12".parse().unwrap()),
                sense: Sense::IsNot,
            },
            Condition {
                subject: Subject::InputName("eth0".to_owned()),
                sense: Sense::Is,
            },
            Condition {
                subject: Subject::Mark(16),
                sense: Sense::Is,
            },
        ];
        for words in [
            &["ip daddr != 10.96.0.0/12 iifname \"eth0\" meta mark 0x10"][..],
            &["ip daddr != 10.96.0.0/12", "iifname eth0", "mark == 16"],
            &[
                "ip",
                "daddr",
                "!=",
                "10.96.0.0/12",
                "meta iifname eth0",
                "mark",
                "0x10",
            ],
        ] {
            assert_eq!(parse(IpVersion::V4, words).unwrap(), wanted, "{words:?}");
        }
        assert!(parse(IpVersion::V4, &[]).unwrap().is_empty());
        assert!(parse(IpVersion::V6, &["ip6 saddr fd00::/8"]).is_ok());
    }

    #[test]
    fn unsupported_conditions_are_named() {
        for (words, named) in [
            (&["!", "-d", "192.0.2.0/24"][..], "iptables syntax"),
            (&["-m comment"], "\"-d A\" is \"ip daddr A\""),
            (&["tcp sport 80"], "\"tcp\" is not supported"),
            (&["ip6 daddr ::"], "\"ip6 daddr\" is not supported"),
            (&["ip daddr fd00::1"], "of the other family"),
            (&["ip daddr"], "no address or prefix"),
            (&["ip daddr { 192.0.2.1 }"], "no address or prefix"),
            (&["iifname eth*"], "patterns"),
            (&["oifname eth0"], "\"oifname\" is not supported"),
            (&["meta mark 0x100000000"], "mark \"0x100000000\""),
        ] {
            let error = parse(IpVersion::V4, words).unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
            assert_eq!(error.code(), 7);
        }
    }
}
