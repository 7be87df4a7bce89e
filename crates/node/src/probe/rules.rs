//! The firewall rules of the node, which are copied into a temporary network namespace. Rules of legacy
//! iptables are saved and loaded with `iptables-legacy-save` and `iptables-legacy-restore`.

use anyhow::{Context as _, ensure};
use nft::Ruleset;

use crate::program::output_of;

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
        ensure!(size <= LARGEST, "the rules take {} MiB", size >> 20);
        let legacy = save(legacy)?;
        Ok(Self { ruleset, legacy })
    }
}

/// The rules of legacy iptables of one IP family, as `iptables-legacy-save` prints them.
#[derive(Debug)]
pub(super) struct Saved {
    /// Prefix of the programs that save and load the rules: `iptables-legacy` or
    /// `ip6tables-legacy`.
    program: &'static str,
    text: Vec<u8>,
}

/// Saves the rules of legacy iptables. `families` names the IP families that have tables of legacy
/// iptables: `ip`, `ip6`.
///
/// # Errors
/// A program is missing, or fails.
fn save(families: &[String]) -> anyhow::Result<Vec<Saved>> {
    let has_tables = |family: &str| families.iter().any(|it| it == family);
    let programs = PROGRAMS.into_iter().filter(|it| has_tables(it.0));
    let saved = programs.map(|(_, program)| {
        let text = run(&format!("{program}-save"), &[], &[])?;
        Ok(Saved { program, text })
    });
    saved.collect()
}

impl Saved {
    /// Loads the rules into this thread's network namespace. All counters start at 0, so
    /// [`Saved::dropping`] finds only packets that were sent after this call.
    pub fn load(&self) -> anyhow::Result<()> {
        run(&format!("{}-restore", self.program), &[], &self.text).map(drop)
    }

    /// Returns the names of the nfacct objects that the rules refer to.
    pub fn nfacct_objects(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.text);
        let after = text.split(" --nfacct-name ").skip(1);
        let names = after.filter_map(|it| it.split_whitespace().next());
        names.map(str::to_owned).collect()
    }

    /// Returns the first rule or policy in this thread's network namespace whose counter shows that
    /// it dropped or rejected a packet. Returns `None` if there is none, or if the rules cannot be
    /// read.
    pub fn dropping(&self) -> Option<String> {
        let text = run(&format!("{}-save", self.program), &["-c"], &[]).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut table = "";
        text.lines().find_map(|line| {
            table = line.strip_prefix('*').unwrap_or(table);
            let (counters, _) = line.get(line.find('[')?..)?.split_once(']')?;
            let rule = line.replace(&format!("{counters}]"), "");
            let drops = [" DROP", "-j REJECT"].iter().any(|it| rule.contains(it));
            let counted = !counters.starts_with("[0:");
            let place = format!("{} -t {table}", self.program);
            (drops && counted).then(|| format!("{place}: {}", rule.trim()))
        })
    }
}

fn run(program: &str, arguments: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let printed = output_of(&[&[program], arguments].concat(), input)?;
    printed.with_context(|| format!("run {program}: it is not installed"))
}

/// The IP families, each with the prefix of the programs that save and load its rules.
const PROGRAMS: [(&str, &str); 2] = [("ip", "iptables-legacy"), ("ip6", "ip6tables-legacy")];

/// Size limit of the rules of `nf_tables`, in bytes.
const LARGEST: usize = 256 << 20;
