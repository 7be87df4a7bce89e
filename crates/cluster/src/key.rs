//! Keys of WireGuard.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use x25519_dalek::StaticSecret;

/// The private key of a node. Its memory is overwritten when it is dropped.
#[derive(Clone)]
pub struct PrivateKey(StaticSecret);

/// The public key of a node, by which the other nodes know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub(crate) [u8; 32]);

/// A text that is no key: 32 bytes in base64, which are not all 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no WireGuard key")]
pub struct InvalidKey;

impl PrivateKey {
    /// Returns a new random key.
    pub fn random() -> Self {
        Self(StaticSecret::random())
    }

    /// Returns the key that belongs to this one.
    pub fn public(&self) -> PublicKey {
        PublicKey(x25519_dalek::PublicKey::from(&self.0).to_bytes())
    }

    /// Returns the key in base64, as `wg genkey` prints it.
    pub fn secret_text(&self) -> String {
        BASE64_STANDARD.encode(self.0.as_bytes())
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }
}

impl FromStr for PrivateKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Ok(Self(bytes(text)?.into()))
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

fn bytes(text: &str) -> Result<[u8; 32], InvalidKey> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|_| InvalidKey)?;
    let bytes: [u8; 32] = bytes.try_into().map_err(|_| InvalidKey)?;
    (bytes != [0; 32]).then_some(bytes).ok_or(InvalidKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748, section 6.1.
    #[test]
    fn public_key_is_the_one_of_the_standard() {
        let private = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let key: PrivateKey = private.parse().unwrap();
        let public = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        assert_eq!(key.public().to_string(), public);
        assert_eq!(key.secret_text(), private);
        assert!(!format!("{key:?}").contains(private));
    }

    #[test]
    fn other_texts_are_no_keys() {
        let zero = BASE64_STANDARD.encode([0; 32]);
        let short = BASE64_STANDARD.encode([1; 31]);
        for text in ["", "key", &zero, &short] {
            assert_eq!(text.parse::<PublicKey>(), Err(InvalidKey), "{text}");
        }
    }
}
