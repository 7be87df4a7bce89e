//! Rules of legacy iptables, saved and loaded by its own programs.

use anyhow::Context as _;

use crate::program::output_of;

/// The rules of one family.
#[derive(Debug)]
pub(super) struct Saved {
    programs: [&'static str; 2],
    text: Vec<u8>,
}

/// Saves the rules of families with tables, according to `/proc/net/ip_tables_names` and `/proc/net/ip6_tables_names`.
///
/// # Errors
/// A program is missing, or fails.
pub(super) fn save(families: &[String]) -> anyhow::Result<Vec<Saved>> {
    let mut programs = PROGRAMS.to_vec();
    programs.retain(|it| families.iter().any(|family| family == it[0]));
    let saved = programs.into_iter().map(|[_, save, restore]| {
        let text = run(save, &[], &[])?;
        let programs = [save, restore];
        Ok(Saved { programs, text })
    });
    saved.collect()
}

impl Saved {
    /// Loads the rules into this thread's namespace, with counters of 0.
    pub fn load(&self) -> anyhow::Result<()> {
        run(self.programs[1], &[], &self.text).map(drop)
    }

    /// Returns the first rule or policy of this thread's namespace that dropped a packet.
    pub fn dropping(&self) -> Option<String> {
        let text = run(self.programs[0], &["-c"], &[]).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut table = "";
        text.lines().find_map(|line| {
            table = line.strip_prefix('*').unwrap_or(table);
            let (counters, _) = line.get(line.find('[')?..)?.split_once(']')?;
            let rule = line.replace(&format!("{counters}]"), "");
            let drops = [" DROP", "-j REJECT"].iter().any(|it| rule.contains(it));
            let counted = !counters.starts_with("[0:");
            let program = self.programs[0].trim_end_matches("-save");
            (drops && counted).then(|| format!("{program} -t {table}: {}", rule.trim()))
        })
    }
}

fn run(program: &str, arguments: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let printed = output_of(&[&[program], arguments].concat(), input)?;
    printed.with_context(|| format!("run {program}: it is not installed"))
}

/// The family, and the programs that save and load its rules.
const PROGRAMS: [[&str; 3]; 2] = [
    ["ip", "iptables-legacy-save", "iptables-legacy-restore"],
    ["ip6", "ip6tables-legacy-save", "ip6tables-legacy-restore"],
];
