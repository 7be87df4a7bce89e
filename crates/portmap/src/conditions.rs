//! `conditionsV4` and `conditionsV6`: the packets for which the ports of a network are forwarded.
//!
//! The conditions have the syntax of nft(8), of which this module supports a part: source and
//! destination address, input interface, fwmark, with sets, ranges and negations of each.

use cni::{Error, hex};
use nft::{IpVersion, Rule};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::RawConfig;
use crate::subject::{Sense, Subject};
use crate::words::Words;

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

    /// Returns the rules that send packets to `chain` if they meet all conditions for `version`;
    /// `None` if there are no conditions for `version`.
    ///
    /// A rule matches if all its expressions match. So a set has rules of its own, which return the
    /// packets that do not meet the condition.
    pub fn rules(&self, version: IpVersion, chain: &str) -> Option<Vec<Rule>> {
        let conditions = self.of(version);
        if conditions.is_empty() {
            return None;
        }
        let mut rule = Rule::new("what the network's ports are for");
        let mut rules = Vec::new();
        for Condition { subject, sense } in conditions {
            let unmet = || Rule::new("what they are not for");
            match (subject, sense) {
                (Subject::Any(_), Sense::Is) => {
                    rules.push(subject.narrow(unmet(), Sense::IsNot).return_to_caller());
                }
                (Subject::Any(values), Sense::IsNot) => {
                    let inside = values.iter().map(|it| it.narrow(unmet(), Sense::Is));
                    rules.extend(inside.map(Rule::return_to_caller));
                }
                (subject, sense) => rule = subject.narrow(rule, *sense),
            }
        }
        rules.push(rule.goto(chain));
        Some(rules)
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
        let mut words = Words::of(&text);
        let mut conditions = Vec::new();
        while let Some(word) = words.next() {
            let subject = match word {
                "ip" | "ip6" | "meta" => format!("{word} {}", words.next().unwrap_or_default()),
                word => word.to_owned(),
            };
            let sense = match words.next_if(&["!=", "==", "eq", "ne"]) {
                Some("!=" | "ne") => Sense::IsNot,
                _ => Sense::Is,
            };
            let values = words.values().map_err(invalid)?;
            let parse = |value: &String| Subject::parse(version, &subject, value);
            let parsed: Result<Vec<_>, _> = values.iter().map(parse).collect();
            let subject = Subject::of_values(parsed.map_err(invalid)?, sense);
            conditions.push(Self {
                subject: subject.map_err(invalid)?,
                sense,
            });
        }
        Ok(conditions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::MOST_VALUES;

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
    fn sets_and_ranges_are_read_as_nft_reads_them() {
        let range = |[first, last]: [&str; 2]| {
            Subject::SourceRange(first.parse().unwrap(), last.parse().unwrap())
        };
        let names = ["a", "b"].map(|it| Subject::InputName(it.to_owned()));
        for (words, subject, sense) in [
            (
                &["iifname != {\"a\",\"b\"}"][..],
                Subject::Any(names.to_vec()),
                Sense::IsNot,
            ),
            (
                &["iifname", "{ a", ", b, }"],
                Subject::Any(names.to_vec()),
                Sense::Is,
            ),
            (&["iifname!={a}"], names[0].clone(), Sense::IsNot),
            (
                &["ip saddr 192.0.2.1-192.0.2.9"],
                range(["192.0.2.1", "192.0.2.9"]),
                Sense::Is,
            ),
            (
                &["ip saddr { 192.0.2.1 - 192.0.2.9, 198.51.100.0/24 }"],
                Subject::Any(vec![
                    range(["192.0.2.1", "192.0.2.9"]),
                    Subject::Source("198.51.100.0/24".parse().unwrap()),
                ]),
                Sense::Is,
            ),
            (&["mark ne 1-0xf"], Subject::MarkRange(1, 15), Sense::IsNot),
        ] {
            let wanted = Condition { subject, sense };
            assert_eq!(parse(IpVersion::V4, words).unwrap(), [wanted], "{words:?}");
        }
        let set = |number| format!("mark {{ {} }}", vec!["1"; number].join(", "));
        parse(IpVersion::V4, &[&set(MOST_VALUES)]).unwrap();
        parse(IpVersion::V4, &[&set(MOST_VALUES + 1)]).unwrap_err();
    }

    #[test]
    fn unsupported_conditions_are_named() {
        for (words, named) in [
            (&["!", "-d", "192.0.2.0/24"][..], "iptables syntax"),
            (&["-m comment"], "\"-d A\" is \"ip daddr A\""),
            (&["tcp sport 80"], "\"tcp\" is not supported"),
            (&["ip6 daddr ::"], "\"ip6 daddr\" is not supported"),
            (&["ip daddr fd00::1"], "of the other family"),
            (&["ip daddr"], "is no value"),
            (&["ip daddr { }"], "\"}\" is no value"),
            (&["ip daddr { 192.0.2.1"], "set is not closed"),
            (&["ip daddr { 192.0.2.1 192.0.2.2 }"], "expected , or }"),
            (&["ip daddr 192.0.2.1, 192.0.2.2"], "\",\" is not supported"),
            (&["ip daddr { { 192.0.2.1 } }"], "\"{\" is no value"),
            (&["ip daddr 192.0.2.9-192.0.2.1"], "ends before it begins"),
            (&["ip daddr 192.0.2.0/24-192.0.3.0/24"], "no prefixes"),
            (&["ip daddr 192.0.2.1- 192.0.2.9"], "no address or prefix"),
            (&["ip daddr @hosts"], "no address or prefix"),
            (&["iifname {a, $b}"], "$b: a link's name"),
            (&["iifname @links"], "needs quotes"),
            (&["iifname \"a"], "is no value"),
            (&["meta mark 010"], "neither decimal"),
            (&["meta mark & 0xff == 1"], "mark \"&\""),
            (&["meta mark 0x10/0xff"], "mark \"0x10/0xff\""),
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
