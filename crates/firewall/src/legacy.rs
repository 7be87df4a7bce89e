//! The plugin's rules in legacy iptables, which accept packets with the plugin's fwmark. Legacy
//! iptables is not part of `nf_tables`. So ADD runs a program, `iptables-legacy` or
//! `ip6tables-legacy`, to add the rules, once per node.
//!
//! The plugin then adds a marker chain to its own table, so later ADDs see that the rules exist and
//! do not run the program. Both the rules and the chain disappear with the network namespace. But a
//! saved ruleset may bring the chain back without the rules, after a boot or in another namespace.
//! So the name of the chain contains the boot ID and the inode of the namespace.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::ensure;
use cni::process;
use nft::{Chain, Family, Rule};

use crate::{CHAIN, Config};

/// The plugin's rules in legacy iptables for one IP family.
#[derive(Debug)]
pub(crate) struct Legacy {
    family: Family,
    admin_chain: String,
    mark: String,
    bit: u8,
}

impl Legacy {
    pub fn new(family: Family, config: &Config) -> Self {
        let bits = config.mark.bits();
        Self {
            family,
            admin_chain: config.admin_chain.clone(),
            mark: format!("{bits:#x}/{bits:#x}"),
            bit: config.mark.bit(),
        }
    }

    /// Returns whether legacy iptables has a table `filter` in this namespace.
    pub fn is_in_use(&self) -> bool {
        let names = fs::read_to_string(format!(
            "/proc/thread-self/net/{}_tables_names",
            self.family.name()
        ));
        names.is_ok_and(|it| it.lines().any(|line| line == "filter"))
    }

    /// Checks that the program of legacy iptables runs.
    ///
    /// # Errors
    /// The program cannot be run, or fails.
    pub fn probe(&self) -> anyhow::Result<()> {
        self.run(&["--version"])
    }

    /// Adds to legacy iptables what it lacks of these rules: the jumps from `FORWARD` to
    /// `CNI-FORWARD` and from there to the admin chain, and the rule that accepts packets with the
    /// mark. Creates both chains if they do not exist.
    ///
    /// # Errors
    /// The program cannot be run, or fails.
    pub fn insert(&self) -> anyhow::Result<()> {
        for chain in [CHAIN, &self.admin_chain] {
            // Its status is not 0 if the chain exists.
            self.output(&["-N", chain])?;
        }
        let marked = ["-m", "mark", "--mark", &self.mark, "-j", "ACCEPT"];
        self.ensure("-I", "FORWARD", &["-j", CHAIN])?;
        self.ensure("-I", CHAIN, &["-j", &self.admin_chain])?;
        self.ensure("-A", CHAIN, &marked)
    }

    /// Removes the rules that the Go plugin added for this address. A missing rule counts as
    /// removed.
    pub fn remove_admission(&self, address: &str) {
        let answers = ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"];
        for condition in [
            &["-s", address][..],
            &[&["-d", address], &answers[..]].concat(),
        ] {
            let rule = [&["-D", CHAIN], condition, &["-j", "ACCEPT"]].concat();
            self.run(&rule).ok();
        }
    }

    /// Adds `rule` to `chain` by the option `how` (`-I` or `-A`), unless the chain has the rule.
    fn ensure(&self, how: &str, chain: &str, rule: &[&str]) -> anyhow::Result<()> {
        let found = self.output(&[&["-C", chain], rule].concat())?;
        if found.status.success() {
            return Ok(());
        }
        self.run(&[&[how, chain], rule].concat())
    }

    /// Returns the name of the marker chain in the plugin's `nf_tables` table. If the chain exists,
    /// the plugin has already added the rules to legacy iptables in this namespace since the boot.
    /// Then ADD does not run the program of legacy iptables again, but RELOAD always runs it.
    pub fn note(&self) -> String {
        let (name, bit, admin) = (self.family.name(), self.bit, &self.admin_chain);
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.split('-').next().unwrap_or_default().trim();
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_or(0, |it| it.ino());
        format!("legacy-{name}-{bit}-{admin}-{boot}-{namespace:x}")
    }

    /// Returns the marker chain with the name [`Self::note`].
    pub fn note_chain(&self) -> Chain {
        let rule = Rule::new("rules were added to legacy iptables");
        Chain::regular(self.note(), vec![rule.return_to_caller()])
    }

    fn run(&self, words: &[&str]) -> anyhow::Result<()> {
        let output = self.output(words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{} {}: {}",
            self.program(),
            words.join(" "),
            said.trim()
        );
        Ok(())
    }

    fn output(&self, words: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(self.program());
        command.args(["-w", WAIT, "-t", "filter"]).args(words);
        Ok(process::output_of(&mut command, b"", LONGEST)?)
    }

    fn program(&self) -> String {
        format!("{}tables-legacy", self.family.name())
    }
}

/// Maximum time, in seconds, that legacy iptables waits for another program's lock on the rules.
const WAIT: &str = "5";

/// Time limit of one run of the program. It includes [`WAIT`].
const LONGEST: Duration = Duration::from_secs(10);
