//! Versions of the specification.

use std::str::FromStr;

/// A released version of the CNI specification. An older version is less than a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{}", self.as_str())]
pub enum SpecVersion {
    /// 0.1.0, also for an absent `cniVersion`.
    V0_1_0,
    /// 0.2.0.
    V0_2_0,
    /// 0.3.0, the first with lists of interfaces.
    V0_3_0,
    /// 0.3.1.
    V0_3_1,
    /// 0.4.0, the first with CHECK.
    V0_4_0,
    /// 1.0.0.
    V1_0_0,
    /// 1.1.0, the first with GC and STATUS.
    V1_1_0,
}

impl SpecVersion {
    /// All versions, oldest first.
    pub const ALL: &'static [Self] = &[
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The versions whose results list interfaces: 0.3.0 and later. A plugin that needs this list
    /// supports only these versions.
    pub const WITH_INTERFACES: &'static [Self] = Self::ALL.split_at(2).1;

    /// The newest version. In memory, all results are in this version.
    pub const CURRENT: Self = Self::V1_1_0;

    /// Returns the version as configurations spell it, such as `1.0.0`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Joins versions for messages: `0.4.0, 1.0.0`.
    pub fn list(versions: &[Self]) -> String {
        let names: Vec<_> = versions.iter().map(|version| version.as_str()).collect();
        names.join(", ")
    }
}

impl FromStr for SpecVersion {
    type Err = UnknownVersion;

    /// Accepts only the exact spelling, as the Go plugins do: `1.0` is not a version. An empty text
    /// means 0.1.0.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        if text.is_empty() {
            return Ok(Self::V0_1_0);
        }
        let known = Self::ALL.iter().find(|version| version.as_str() == text);
        known
            .copied()
            .ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

/// A `cniVersion` that no released specification has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown CNI version {0:?}")]
pub struct UnknownVersion(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_age_and_matched_exactly() {
        assert!(SpecVersion::ALL.is_sorted());
        for version in SpecVersion::ALL {
            assert_eq!(version.as_str().parse(), Ok(*version));
        }
        assert_eq!("".parse(), Ok(SpecVersion::V0_1_0));
        assert_eq!(
            "1.0".parse::<SpecVersion>(),
            Err(UnknownVersion("1.0".into()))
        );
    }
}
