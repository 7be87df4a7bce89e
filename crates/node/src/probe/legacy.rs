//! Rules of legacy iptables, saved and loaded by its own programs.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

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
    let programs = PROGRAMS
        .into_iter()
        .filter(|it| families.iter().any(|family| family == it[0]));
    let saved = programs.map(|[_, save, restore]| {
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
            let drops = ["-j DROP", "-j REJECT", " DROP"]
                .iter()
                .any(|it| rule.contains(it));
            let counted = !counters.starts_with("[0:");
            let program = self.programs[0].trim_end_matches("-save");
            (drops && counted).then(|| format!("{program} -t {table}: {}", rule.trim()))
        })
    }
}

fn run(program: &str, words: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn();
    let child = child
        .as_mut()
        .map_err(|error| std::io::Error::from(error.kind()));
    let child = child.with_context(|| format!("run {program}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input)
            .with_context(|| format!("write to {program}"))?;
    }
    let mut printed = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        std::io::Read::read_to_end(&mut stdout, &mut printed)?;
    }
    let status = child.wait().with_context(|| format!("run {program}"))?;
    ensure!(status.success(), "{program} fails: {status}");
    Ok(printed)
}

/// The family, and the programs that save and load its rules.
const PROGRAMS: [[&str; 3]; 2] = [
    ["ip", "iptables-legacy-save", "iptables-legacy-restore"],
    ["ip6", "ip6tables-legacy-save", "ip6tables-legacy-restore"],
];
