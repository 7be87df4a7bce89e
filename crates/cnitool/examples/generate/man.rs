//! Man pages of section 8 for cnitool and each of its commands.

use std::io;

use clap::Command;
use clap_mangen::Man;

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

fn page(command: &Command, rest: &str) -> io::Result<(String, Vec<u8>)> {
    let man = Man::new(command.clone())
        .section("8")
        .source(concat!("cnitool ", env!("CARGO_PKG_VERSION")))
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

fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

const SEE_ALSO: &str = ".SH SEE ALSO\n.BR cnitool (8)\n";
