//! Names that the runtime passes (network, container, interface), and texts derived from them.
//!
//! These names become part of file names, kernel names and comments in nftables. So each kind of
//! name has a type that accepts only names that are safe there.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// One interface of one container on one network.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("container {container} interface {interface} on network {network}")]
pub struct Attachment {
    /// The network's `name`.
    pub network: NetworkName,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_IFNAME`.
    pub interface: InterfaceName,
}

impl Attachment {
    /// Returns the tag that marks everything of this attachment, such as links and `nf_tables`
    /// elements: `cni:<network>/<container ID>/<interface>`.
    ///
    /// The tag must be a comment that nft(8) can load again: at most 128 bytes and without a
    /// quotation mark. A single invalid comment makes nft(8) reject a saved ruleset as a whole. If
    /// the tag would be too long, hashes replace the network's name and the container ID: the first
    /// digits of their SHA-256. An interface name can contain a quotation mark; a per cent sign
    /// replaces it. The replacement is unambiguous, since the kernel allows no per cent sign in
    /// interface names (`__dev_alloc_name()` in net/core/dev.c).
    pub fn owner(&self) -> String {
        let interface = self.interface.as_str().replace('"', "%");
        let (network, container) = (self.network.as_str(), self.container.as_str());
        let clear = format!("{OWNER_PREFIX}{network}/{container}/{interface}");
        if clear.len() <= OWNER_LIMIT {
            return clear;
        }
        let (network, container) = (stand_in(network), stand_in(container));
        format!("{OWNER_PREFIX}{network}/{container}/{interface}")
    }

    /// Returns the attachment whose tag is `owner`. If the tag contains hashes instead of names
    /// that are too long, the names of the returned attachment are these hashes. Returns `None` if
    /// `owner` is not a tag.
    pub fn of_owner(owner: &str) -> Option<Self> {
        let [network, container, interface] = names(owner)?;
        let attachment = Self {
            network: network.parse().ok()?,
            container: container.parse().ok()?,
            interface: interface.replace('%', "\"").parse().ok()?,
        };
        (attachment.owner() == owner).then_some(attachment)
    }

    /// Returns whether `text` starts with `cni:`, as the tags of all attachments do.
    pub fn is_owner(text: &str) -> bool {
        text.starts_with(OWNER_PREFIX)
    }

    /// Returns whether the tag `owner` has hashes in place of names.
    pub fn has_hashes(owner: &str) -> bool {
        let is_hash = |it: &str| is_hex(it, STAND_IN);
        names(owner).is_some_and(|[network, container, _]| is_hash(network) && is_hash(container))
    }

    /// Returns whether `owner` is the tag of an attachment of `network`.
    pub fn is_owner_in(owner: &str, network: &NetworkName) -> bool {
        names(owner).is_some_and(|[it, ..]| stands_for(it, network.as_str()))
    }

    /// Returns whether `one` and `other` are tags of attachments of the same container.
    pub fn is_same_container(one: &str, other: &str) -> bool {
        let names = names(one).zip(names(other));
        names.is_some_and(|([_, one, _], [_, other, _])| is_same(one, other))
    }

    /// Returns whether both are attachments of the same container to the same network. Each may
    /// come from a tag, with hashes as names.
    pub fn is_beside(&self, other: &Self) -> bool {
        is_same(self.network.as_str(), other.network.as_str())
            && is_same(self.container.as_str(), other.container.as_str())
    }

    /// Returns whether `owner` is the tag of an attachment of the same container to the same network.
    pub fn is_beside_owner(&self, owner: &str) -> bool {
        names(owner).is_some_and(|[network, container, _]| {
            is_same(self.network.as_str(), network) && is_same(self.container.as_str(), container)
        })
    }

    /// Returns the SHA-256 of the attachment's three names (network, container, interface). Callers
    /// derive link names and MACs from it.
    pub fn digest(&self) -> [u8; 32] {
        // Names cannot contain a slash, so the joined text is unambiguous.
        let names = format!("{}/{}/{}", self.network, self.container, self.interface);
        Sha256::digest(names).into()
    }
}

/// Maximum length of an attachment's tag in bytes: `NFTNL_UDATA_COMMENT_MAXLEN` in libnftnl.
const OWNER_LIMIT: usize = 128;

const OWNER_PREFIX: &str = "cni:";

/// Returns the parts of the tag `owner`: the network's name, the container ID and the interface.
/// The first two parts are hashes if the names were too long for a tag. Returns `None` if `owner`
/// does not have the form of a tag.
fn names(owner: &str) -> Option<[&str; 3]> {
    let (network, rest) = owner.strip_prefix(OWNER_PREFIX)?.split_once('/')?;
    let (container, interface) = rest.split_once('/')?;
    Some([network, container, interface])
}

/// Returns whether both texts are the same name, or one is the hash of the other.
fn is_same(one: &str, other: &str) -> bool {
    stands_for(one, other) || stands_for(other, one)
}

/// Returns whether `text`, a part of an attachment's tag, is `name` or its hash.
fn stands_for(text: &str, name: &str) -> bool {
    text == name || text.len() == STAND_IN && text == stand_in(name)
}

/// Returns the hash that replaces `name` in a tag that would be too long: the first digits of its
/// SHA-256.
fn stand_in(name: &str) -> String {
    hex(&Sha256::digest(name), STAND_IN)
}

/// Hexadecimal digits of a hash in a tag.
const STAND_IN: usize = 48;

impl NetworkName {
    /// Returns the first two bytes of the name's SHA-256. They identify the network in a MAC, which
    /// has no room for the name itself.
    pub fn mark(&self) -> [u8; 2] {
        let [a, b, ..] = <[u8; 32]>::from(Sha256::digest(self.as_str()));
        [a, b]
    }
}

/// Returns the first `digits` hexadecimal digits of `bytes`.
pub fn hex(bytes: &[u8], digits: usize) -> String {
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    let all = nibbles.filter_map(|nibble| char::from_digit(nibble.into(), 16));
    all.take(digits).collect()
}

/// Returns whether `text` consists of this number of hexadecimal digits, with letters in lower case.
pub fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == digits && text.bytes().all(is_digit)
}

/// The reason why a name is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no valid {what}: {rule}")]
pub struct InvalidName {
    name: String,
    what: &'static str,
    rule: &'static str,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $what:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize, derive_more::Display)]
        #[serde(try_from = "String")]
        pub struct $type(String);

        impl $type {
            /// Returns the name as the caller gave it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = InvalidName;

            fn from_str(name: &str) -> Result<Self, InvalidName> {
                if $valid(name) {
                    return Ok(Self(name.to_owned()));
                }
                Err(InvalidName { name: name.to_owned(), what: $what, rule: $rule })
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;

            fn try_from(name: String) -> Result<Self, InvalidName> {
                name.parse()
            }
        }
    };
}

name_type!(
    /// A container ID. It is safe as part of a path.
    ContainerId,
    "container ID",
    "it starts with a letter or digit and holds letters, digits, '_', '.' and '-'",
    is_identifier
);
name_type!(
    /// A network's name. It is safe as part of a path.
    NetworkName,
    "network name",
    "it starts with a letter or digit and holds letters, digits, '_', '.' and '-'",
    is_identifier
);
name_type!(
    /// A Linux interface name: 1 to 15 bytes, safe as part of a path.
    InterfaceName,
    "interface name",
    "it has 1 to 15 bytes, is not '.' or '..', and holds no '/', ':', '%', white space, control character or byte 0xA0",
    is_interface_name
);

fn is_identifier(name: &str) -> bool {
    let body = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(body)
}

/// Returns whether `name` obeys the rules of `dev_valid_name()` in net/core/dev.c and has neither
/// control characters nor a per cent sign. Control characters could change the terminal that prints
/// the name. The kernel takes a name with a per cent sign for a pattern, such as `eth%d`, or
/// refuses it (`__dev_alloc_name()`).
fn is_interface_name(name: &str) -> bool {
    let is_special = |c: char| matches!(c, '/' | ':' | '%');
    let forbidden = |c: char| is_special(c) || c.is_control() || c.is_whitespace();
    let is_refused = matches!(name, "." | "..") || name.contains(forbidden);
    // The kernel reads names as Latin-1, where this byte is a space. UTF-8 has it in `à`.
    let has_space = name.bytes().any(|byte| byte == 0xA0);
    (1..=15).contains(&name.len()) && !is_refused && !has_space
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(network: &str, container: &str) -> Attachment {
        Attachment {
            network: network.parse().unwrap(),
            container: container.parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        for name in ["", ".", "..", "../x", "a/b", "a\0b", "-a", "_a", "ä", "a b"] {
            assert!(name.parse::<ContainerId>().is_err(), "{name:?}");
            assert!(name.parse::<NetworkName>().is_err(), "{name:?}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\tb",
            "eth%d",
            "a\0b",
            "a\u{1b}[2J",
            "à",
            "sixteen-letters.",
        ] {
            assert!(name.parse::<InterfaceName>().is_err(), "{name:?}");
        }
        assert!("0_a.b-c".parse::<ContainerId>().is_ok());
        assert!("fifteen-letters".parse::<InterfaceName>().is_ok());
        assert!("ä".parse::<InterfaceName>().is_ok());
    }

    #[test]
    fn owner_names_the_three_in_clear_while_they_fit() {
        assert_eq!(attachment("pods", "c1").owner(), "cni:pods/c1/eth0");
        let fits = attachment(&"n".repeat(54), &"c".repeat(64)).owner();
        assert!(fits.len() == 128 && fits.contains("nnn/ccc"));
        let long = attachment(&"n".repeat(55), &"c".repeat(64)).owner();
        assert_eq!(long.len(), 4 + 48 + 1 + 48 + 5);
        assert!(long.starts_with("cni:") && long.ends_with("/eth0"));
        let quoted = Attachment {
            interface: "\"e\\h\"".parse().unwrap(),
            ..attachment("pods", "c1")
        };
        assert_eq!(quoted.owner(), "cni:pods/c1/%e\\h%");
        assert_eq!(Attachment::of_owner(&quoted.owner()), Some(quoted));
    }

    #[test]
    fn owner_tells_its_network_in_clear_and_hashed() {
        let long = "n".repeat(150);
        for network in ["pods", long.as_str()] {
            let owner = attachment(network, &"c".repeat(64)).owner();
            assert!(
                Attachment::is_owner_in(&owner, &network.parse().unwrap()),
                "{owner}"
            );
            assert!(
                !Attachment::is_owner_in(&owner, &"pod".parse().unwrap()),
                "{owner}"
            );
        }
        assert!(!Attachment::is_owner_in(
            "uplink of pods/",
            &"pods".parse().unwrap()
        ));
    }

    #[test]
    fn owner_tells_its_container_in_clear_and_hashed() {
        let container = "c".repeat(64);
        let owners = ["pods", &"n".repeat(150)].map(|it| attachment(it, &container).owner());
        for other in &owners {
            assert!(Attachment::is_same_container(&owners[0], other), "{other}");
        }
        let another = attachment("pods", &"d".repeat(64)).owner();
        for other in [another.as_str(), "", "cni:pods", "somebody's"] {
            assert!(!Attachment::is_same_container(&owners[0], other), "{other}");
            assert!(!Attachment::is_same_container(&owners[1], other), "{other}");
        }
        assert!(!Attachment::is_same_container("", ""));
    }

    #[test]
    fn attachments_beside_each_other_are_known_in_clear_and_hashed() {
        // The interface's name alone decides whether the tag has hashes.
        let clear = attachment(&"n".repeat(54), &"c".repeat(64));
        let hashed = Attachment {
            interface: "eth0-longer".parse().unwrap(),
            ..clear.clone()
        };
        let of_tag = Attachment::of_owner(&hashed.owner()).unwrap();
        assert_ne!(of_tag.container, hashed.container);
        for one in [&clear, &hashed, &of_tag] {
            for other in [&clear, &hashed, &of_tag] {
                assert!(one.is_beside(other) && one.is_beside_owner(&other.owner()));
            }
        }
        for other in [
            attachment("pods", &"c".repeat(64)),
            attachment(&"n".repeat(54), "c"),
        ] {
            assert!(!of_tag.is_beside(&other) && !of_tag.is_beside_owner(&other.owner()));
            assert!(!other.is_beside(&of_tag) && !other.is_beside_owner(&of_tag.owner()));
        }
    }

    #[test]
    fn digest_depends_on_where_one_name_ends() {
        let digest = |network, container| attachment(network, container).digest();
        assert_ne!(digest("ab", "c"), digest("a", "bc"));
    }
}
