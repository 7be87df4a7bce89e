//! The firewall rules of the node, which are copied into a temporary network namespace.

use nft::Ruleset;

use super::legacy::{self, Saved};

/// All rules of the node in `nf_tables` and in legacy iptables.
#[derive(Debug)]
pub(super) struct Rules {
    pub ruleset: Ruleset,
    pub legacy: Vec<Saved>,
}

impl Rules {
    /// Reads the rules of `nf_tables`, and those of legacy iptables for the IP families `legacy`.
    ///
    /// # Errors
    /// The rules cannot be read, or those of `nf_tables` take more than 256 MiB.
    pub fn read(legacy: &[String]) -> anyhow::Result<Self> {
        let ruleset = nft::Connection::open()?.ruleset()?;
        let size = ruleset.size();
        anyhow::ensure!(size <= LARGEST, "the rules take {} MiB", size >> 20);
        let legacy = legacy::save(legacy)?;
        Ok(Self { ruleset, legacy })
    }
}

/// Size limit of the rules of `nf_tables`, in bytes.
const LARGEST: usize = 256 << 20;
