//! Keys of WireGuard.
//!
//! The private key of a node is one of Ed25519, from which its key of WireGuard (X25519) is computed: both
//! are points of the same curve. So a node can sign what it announces, and cannot announce the key of
//! another one.

use std::str::FromStr;
use std::{fmt, io};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

/// The private key of a node. Its memory is overwritten when it is dropped.
#[derive(Clone)]
pub struct PrivateKey(SigningKey);

/// The public key of a node, by which the other nodes know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub(crate) [u8; 32]);

/// A text that is no key, or not announced by the node that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no WireGuard key")]
pub struct InvalidKey;

impl PrivateKey {
    /// Returns a new random key.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// Returns the key that belongs to this one.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_montgomery().to_bytes())
    }

    /// Returns what the node of this name announces, in base64: its key, and a signature by which it
    /// proves that it has the private key.
    pub fn announcement(&self, node: &str) -> String {
        let signature = self.0.sign(&statement(node)).to_bytes();
        let key = self.0.verifying_key().to_bytes();
        BASE64_STANDARD.encode([key.as_slice(), &signature].concat())
    }

    /// Returns the key in base64.
    pub fn secret_text(&self) -> String {
        BASE64_STANDARD.encode(self.0.as_bytes())
    }

    /// Returns WireGuard's key.
    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0.to_scalar_bytes()
    }
}

impl PublicKey {
    /// Returns the key that the node of this name announces.
    ///
    /// # Errors
    /// The text is no announcement, or one of another node.
    pub fn announced(text: &str, node: &str) -> Result<Self, InvalidKey> {
        let bytes: [u8; 96] = bytes(text)?;
        let (key, signature) = bytes.split_first_chunk().ok_or(InvalidKey)?;
        let key = VerifyingKey::from_bytes(key).map_err(|_| InvalidKey)?;
        let signature = Signature::from_slice(signature).map_err(|_| InvalidKey)?;
        let verified = key.verify_strict(&statement(node), &signature);
        verified.map_err(|_| InvalidKey)?;
        Ok(Self(key.to_montgomery().to_bytes()))
    }
}

impl FromStr for PrivateKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Ok(Self(SigningKey::from_bytes(&bytes(text)?)))
    }
}

/// Two keys are equal if they have the same public key.
impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.public() == other.public()
    }
}

impl Eq for PrivateKey {}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {})", self.public())
    }
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Ok(Self(bytes(text)?))
    }
}

impl TryFrom<String> for PublicKey {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

fn bytes<const LENGTH: usize>(text: &str) -> Result<[u8; LENGTH], InvalidKey> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|_| InvalidKey)?;
    bytes.try_into().map_err(|_| InvalidKey)
}

/// Returns what the node of this name signs.
fn statement(node: &str) -> Vec<u8> {
    format!("cni-cluster: WireGuard key of node {node}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, section 7.1: the first key. Python's cryptography computed the others of it.
    #[test]
    fn keys_are_those_of_the_standards() {
        let private = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
        let key: PrivateKey = private.parse().unwrap();
        let public = "2F4H7CKwrYgVN8L0TWYtGhQ8+DDFespDBdhcepD2ti4=";
        assert_eq!(key.public().to_string(), public);
        assert_eq!(key.secret_text(), private);
        assert!(!format!("{key:?}").contains(private));
        let announcement = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURpG8n+jM09RijwDCAmUHOsu8YOTx7x3\
                            VsCdLGk6iYIzu9dago6wZ0Chl2iEdi2d8lK9QAfmmuF7AeirUBO7JDEB";
        assert_eq!(key.announcement("a"), announcement);
    }

    #[test]
    fn no_node_announces_the_key_of_another_one() {
        let key = PrivateKey::random().unwrap();
        let announcement = key.announcement("a");
        assert_eq!(PublicKey::announced(&announcement, "a"), Ok(key.public()));
        let other = PrivateKey::random().unwrap().announcement("a");
        let mixed = announcement[..44].to_owned() + &other[44..];
        for (text, node) in [
            (announcement.as_str(), "b"),
            (&mixed, "a"),
            (&announcement[..124], "a"),
            (&key.public().to_string(), "a"),
            ("", "a"),
        ] {
            assert_eq!(PublicKey::announced(text, node), Err(InvalidKey), "{text}");
        }
        // A key of small order, with which each signature is valid.
        let weak = BASE64_STANDARD.encode([[1].as_slice(), &[0; 31], &[1], &[0; 63]].concat());
        assert_eq!(PublicKey::announced(&weak, "a"), Err(InvalidKey));
    }
}
