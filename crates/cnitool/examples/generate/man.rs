//! Man pages of section 8 for cnitool, each of its commands, each plugin and cni-agent.

use std::path::Path;
use std::{fs, io};

use clap::Command;
use clap_mangen::Man;
use cni::page::{self, Part};

/// Returns the names of the files and their contents.
pub fn pages(cnitool: &Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut whole = cnitool.clone();
    // Sets the full name of each command, such as `cnitool-add`.
    whole.build();
    let commands = whole.get_subcommands().filter(|it| !it.is_hide_set());
    let of_commands = commands.map(|it| page(it, SEE_ALSO));
    let whole = page(&whole, &environment(cnitool));
    [whole].into_iter().chain(of_commands).collect()
}

/// Returns the page of cni-agent, with the keys of its configuration.
pub fn of_agent() -> io::Result<(String, Vec<u8>)> {
    let keys = page::keys(&read("agent/REFERENCE.md")?, "Keys");
    let rest = format!(".SH CONFIGURATION\n{}{SEE_ALSO}", roff_of(&keys));
    page(&agent::command(), &rest)
}

/// Returns the page of a plugin. Its name begins with `cni-`, because iproute2 has a `bridge.8`.
pub fn of_plugin(plugin: &str) -> io::Result<(String, Vec<u8>)> {
    let own = read(&format!("{plugin}/README.md"))?;
    let description = page::introduction(&own);
    let keys = page::keys(&own, "Configuration reference");
    let common = page::keys(&read("every-plugin.md")?, "Keys of every plugin");
    let sections = [
        ("NAME", format!("cni\\-{} \\- CNI plugin\n", roff(plugin))),
        ("DESCRIPTION", roff_of(&description)),
        ("CONFIGURATION", roff_of(&keys)),
        ("KEYS OF EVERY PLUGIN", roff_of(&common)),
    ];
    let section = |(name, text): &(&str, String)| format!(".SH {name}\n{text}");
    let filled = sections.iter().filter(|(_, text)| !text.is_empty());
    let filled: String = filled.map(section).collect();
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        ".TH cni-{plugin} 8 \"\" \"cni-plugins-rust {version}\" \"CNI plugins\"\n{filled}{SEE_ALSO}"
    );
    Ok((format!("cni-{plugin}.8"), text.into_bytes()))
}

/// Reads a page for operators.
fn read(name: &str) -> io::Result<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(crates.join(name))
}

fn roff_of(parts: &[Part]) -> String {
    let line = |part: &Part| match part {
        Part::Text(text) => format!(".PP\n{}\n", roff(text)),
        Part::Head(head) => format!(".SS {}\n", roff(head)),
        Part::Key {
            name,
            form,
            meaning,
        } => format!(
            ".TP\n\\fB{}\\fR ({})\n{}\n",
            roff(name),
            roff(form),
            roff(meaning)
        ),
    };
    parts.iter().map(line).collect()
}

fn page(command: &Command, rest: &str) -> io::Result<(String, Vec<u8>)> {
    let man = Man::new(command.clone())
        .section("8")
        .source(concat!("cni-plugins-rust ", env!("CARGO_PKG_VERSION")))
        .manual("CNI plugins");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(rest.as_bytes());
    Ok((man.get_filename(), page))
}

/// Returns the section about environment variables of `--help`. Each line of it has a name, two or
/// more spaces, and the description.
fn environment(cnitool: &Command) -> String {
    let help = cnitool.get_after_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    let lines = help.lines().skip(1).filter(|line| !line.is_empty());
    let entry = |line: &str| match line.trim_start().split_once("  ") {
        Some((name, text)) => format!(".TP\n\\fB{name}\\fR\n{}\n", roff(text.trim())),
        None => format!(".PP\n{}\n", roff(line)),
    };
    let entries: String = lines.map(entry).collect();
    format!(".SH ENVIRONMENT\n{entries}")
}

/// Escapes text for roff, which reads neither UTF-8 nor a line that begins with a dot.
fn roff(text: &str) -> String {
    let escaped = |character: char| match character {
        '\\' => "\\e".to_owned(),
        '-' => "\\-".to_owned(),
        ascii if ascii.is_ascii() => ascii.to_string(),
        other => format!("\\[u{:04X}]", u32::from(other)),
    };
    let first = if text.starts_with(['.', '\'']) {
        "\\&"
    } else {
        ""
    };
    let text: String = text.chars().map(escaped).collect();
    format!("{first}{text}")
}

const SEE_ALSO: &str = ".SH SEE ALSO\n.BR cnitool (8)\n";
