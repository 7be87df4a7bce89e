//! Subjects of conditions: the property of a packet, and its values.

use std::array;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nft::{Field, IpVersion, Operator, Rule};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Subject {
    Source(IpNetwork),
    Destination(IpNetwork),
    InputName(String),
    Mark(u32),
    SourceRange(IpAddr, IpAddr),
    DestinationRange(IpAddr, IpAddr),
    MarkRange(u32, u32),
    /// A set of nft(8): at least two values of the same kind.
    Any(Vec<Subject>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sense {
    Is,
    IsNot,
}

impl Subject {
    /// Returns `rule`, limited to packets that meet this condition ([`Sense::Is`]) or do not meet
    /// it. A rule needs all its comparisons to match, so for a set, one rule can only express
    /// [`Sense::IsNot`]. A caller with a set and [`Sense::Is`] needs one rule for each value.
    pub fn narrow(&self, rule: Rule, sense: Sense) -> Rule {
        let operator = match sense {
            Sense::Is => Operator::Equal,
            Sense::IsNot => Operator::NotEqual,
        };
        let within = |side: fn(IpVersion) -> Field, [first, last]: [IpAddr; 2]| {
            let version = IpVersion::of(first);
            let [first, last] = [first, last].map(netlink::octets);
            let rule = rule.clone().when_ip(version);
            rule.ranged(side(version), operator, (&first, &last))
        };
        match self {
            Self::Source(network) => rule.in_network(Field::Source, operator, *network),
            Self::Destination(network) => rule.in_network(Field::Destination, operator, *network),
            Self::InputName(name) => rule.compared(Field::InputName, operator, &padded(name)),
            Self::Mark(mark) => rule.compared(Field::Mark, operator, &mark.to_ne_bytes()),
            Self::SourceRange(first, last) => within(Field::Source, [*first, *last]),
            Self::DestinationRange(first, last) => within(Field::Destination, [*first, *last]),
            Self::MarkRange(first, last) => {
                let [first, last] = [first, last].map(|it| it.to_be_bytes());
                rule.ranged(Field::Mark, operator, (&first, &last))
            }
            Self::Any(values) => values.iter().fold(rule, |rule, it| it.narrow(rule, sense)),
        }
    }

    /// Combines the values of one condition.
    pub fn of_values(mut values: Vec<Self>, sense: Sense) -> Result<Self, String> {
        match (values.pop(), values.len() + 1) {
            (None, _) => Err("a set needs a value".into()),
            (Some(value), 1) => Ok(value),
            (Some(_), number) if sense == Sense::Is && number > MOST_VALUES => Err(format!(
                "a set may have {MOST_VALUES} values, this one has {number}; join addresses to prefixes"
            )),
            (Some(last), _) => {
                values.push(last);
                Ok(Self::Any(values))
            }
        }
    }

    pub fn parse(version: IpVersion, subject: &str, value: &str) -> Result<Self, String> {
        let (v4, v6) = (version == IpVersion::V4, version == IpVersion::V6);
        match subject {
            "ip saddr" if v4 => addresses(version, value, Self::Source, Self::SourceRange),
            "ip6 saddr" if v6 => addresses(version, value, Self::Source, Self::SourceRange),
            "ip daddr" if v4 => {
                addresses(version, value, Self::Destination, Self::DestinationRange)
            }
            "ip6 daddr" if v6 => {
                addresses(version, value, Self::Destination, Self::DestinationRange)
            }
            "iifname" | "meta iifname" => Ok(Self::InputName(link_name(value)?)),
            "mark" | "meta mark" => match value.split_once('-') {
                Some((first, last)) => {
                    let (first, last) = ordered(value, mark(first)?, mark(last)?)?;
                    Ok(Self::MarkRange(first, last))
                }
                None => Ok(Self::Mark(mark(value)?)),
            },
            _ if subject.starts_with(['-', '!']) => Err(format!(
                "{subject} is iptables syntax; write it in the syntax of nft(8): \"-d A\" is \"ip \
                 daddr A\", \"! -s A\" is \"ip saddr != A\", \"-i NAME\" is \"iifname NAME\", \"-m \
                 mark --mark N\" is \"meta mark N\""
            )),
            _ => Err(format!(
                "{subject:?} is not supported; supported are {SUPPORTED} each also with != and as a set"
            )),
        }
    }
}

/// Parses an address, a prefix or a range of addresses, from which `network` or `range` makes the
/// subject of a condition.
fn addresses(
    version: IpVersion,
    text: &str,
    network: fn(IpNetwork) -> Subject,
    range: fn(IpAddr, IpAddr) -> Subject,
) -> Result<Subject, String> {
    let parsed = |text: &str| -> Result<IpNetwork, String> {
        let parsed: IpNetwork = text
            .parse()
            .map_err(|error| format!("{text:?} is no address or prefix: {error}"))?;
        if IpVersion::of(parsed.ip()) == version {
            return Ok(parsed);
        }
        Err(format!("{parsed} is of the other family"))
    };
    let Some((first, last)) = text.split_once('-') else {
        return parsed(text).map(network);
    };
    if text.contains('/') {
        return Err(format!("{text:?}: a range has no prefixes"));
    }
    let (first, last) = ordered(text, parsed(first)?.ip(), parsed(last)?.ip())?;
    Ok(range(first, last))
}

fn ordered<T: Ord>(text: &str, first: T, last: T) -> Result<(T, T), String> {
    if first <= last {
        return Ok((first, last));
    }
    Err(format!("{text:?}: the range ends before it begins"))
}

/// Parses the name of an interface. As in nft(8), a name with other characters than letters,
/// digits, `/`, `-`, `_` and `.` needs quotes. Rejects a name with `*`: nft(8) would match any
/// suffix in its place, which this module does not support.
fn link_name(text: &str) -> Result<String, String> {
    let quoted = text.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let name = quoted.unwrap_or(text);
    if name.contains('*') {
        return Err(format!("{text}: patterns of names are not supported"));
    }
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "/-_.".contains(it);
    if quoted.is_none() && !name.chars().all(is_plain) {
        return Err(format!(
            "{text}: a link's name with such characters needs quotes"
        ));
    }
    let parsed = name.parse::<cni::InterfaceName>();
    parsed
        .map(|_| name.to_owned())
        .map_err(|error| error.to_string())
}

/// Parses a mark. nft(8) takes a number with a leading zero for an octal one.
fn mark(text: &str) -> Result<u32, String> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let is_number = digits.chars().all(|it| it.is_ascii_hexdigit());
    let is_octal = radix == 10 && text.len() > 1 && text.starts_with('0');
    if !is_number || is_octal {
        return Err(format!(
            "mark {text:?}: neither decimal nor hexadecimal (0x…)"
        ));
    }
    u32::from_str_radix(digits, radix).map_err(|error| format!("mark {text:?}: {error}"))
}

/// Returns the name of an interface in the form that the kernel compares: 16 bytes (`IFNAMSIZ`),
/// filled up with zeros.
pub(crate) fn padded(name: &str) -> [u8; 16] {
    let letters = name.as_bytes();
    array::from_fn(|index| letters.get(index).copied().unwrap_or_default())
}

const SUPPORTED: &str = "\"ip saddr\", \"ip daddr\", \"ip6 saddr\" and \"ip6 daddr\" with an \
                         address, prefix or range (ip in conditionsV4, ip6 in conditionsV6), \
                         \"iifname\" with a link's name, \"meta mark\" with a number or range,";

/// Maximum number of values in a set. A rule may have 128 expressions (`NFT_RULE_MAXEXPRS`), and
/// the comparison with a prefix takes five.
pub(crate) const MOST_VALUES: usize = 24;
