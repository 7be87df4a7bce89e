//! Tests that the man pages and completions of the example `generate` are complete and valid.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Returns a directory with all generated files.
fn generated() -> TempDir {
    let test = std::env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/generate");
    assert!(
        example.exists(),
        "{} is missing: cargo build --package cnitool --examples",
        example.display()
    );
    let directory = tempfile::tempdir().unwrap();
    complaints(Command::new(example).arg(directory.path()));
    directory
}

/// Runs a command that has to succeed; returns its standard error.
#[track_caller]
fn complaints(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

fn help(words: &[&str]) -> String {
    let mut cnitool = Command::new(env!("CARGO_BIN_EXE_cnitool"));
    let output = cnitool.args(words).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the commands of cnitool, from its help.
fn commands() -> Vec<String> {
    let help = help(&[]);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|it| it.join(program).exists())
}

/// Returns the names of variables and long options.
fn names(help: &str) -> Vec<&str> {
    let is_in_name = |it: char| it.is_ascii_alphanumeric() || "-_".contains(it);
    let words = help.split(|it| !is_in_name(it));
    let names = words.filter(|word| {
        let is_variable =
            word.starts_with("CNI_") || word.starts_with("CAP_") || *word == "NETCONFPATH";
        is_variable || word.len() > 2 && word.starts_with("--")
    });
    names.collect()
}

#[test]
fn every_command_has_a_page_with_its_options_and_variables() {
    let generated = generated();
    let commands = commands();
    assert!(commands.len() > 5, "{commands:?}");
    let page = |name: &str| {
        let path = generated.path().join("man").join(format!("{name}.8"));
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.replace("\\-", "-")
    };
    let whole = page("cnitool");
    for command in &commands {
        assert!(whole.contains(&format!("cnitool-{command}")), "{command}");
        let (page, help) = (page(&format!("cnitool-{command}")), help(&[command]));
        for name in names(&help) {
            assert!(page.contains(name), "{command}: {name}: {page}");
        }
    }
    for name in names(&help(&[])) {
        assert!(whole.contains(name), "{name}: {whole}");
    }
}

#[test]
fn plugins_and_the_agent_have_pages_with_their_keys() {
    let generated = generated();
    for (name, key) in [
        ("cni-bridge", "vlanTrunk[].id"),
        ("cni-host-local", "logFile"),
        ("cni-loopback", "logLevel"),
        ("cni-agent", "ingress.unitMbit"),
    ] {
        let path = generated.path().join("man").join(format!("{name}.8"));
        assert!(fs::read_to_string(path).unwrap().contains(key), "{name}");
    }
}

#[test]
fn groff_has_nothing_against_the_pages() {
    assert!(
        is_there("groff"),
        "groff is missing: apt-get install groff-base"
    );
    let generated = generated();
    let pages = fs::read_dir(generated.path().join("man")).unwrap();
    let pages: Vec<PathBuf> = pages.map(|it| it.unwrap().path()).collect();
    assert!(pages.len() > 6, "{pages:?}");
    for page in pages {
        let mut groff = Command::new("groff");
        let said = complaints(groff.args(["-man", "-wall", "-Tutf8", "-z"]).arg(&page));
        assert_eq!(said, "", "{}", page.display());
    }
}

#[test]
fn shells_can_read_their_completions() {
    let generated = generated();
    for (shell, file) in [
        ("bash", "cnitool.bash"),
        ("fish", "cnitool.fish"),
        ("zsh", "_cnitool"),
    ] {
        let file = generated.path().join("completions").join(file);
        let text = fs::read_to_string(&file).unwrap();
        for command in commands() {
            assert!(text.contains(&command), "{shell}: {command}");
        }
        // Every machine has bash; the others may be missing.
        if shell == "bash" || is_there(shell) {
            assert_eq!(complaints(Command::new(shell).arg("-n").arg(&file)), "");
        }
    }
}

/// Completes a word as bash does when the user presses the Tab key.
#[test]
fn bash_completes_commands_and_options() {
    let generated = generated();
    let file = generated.path().join("completions/cnitool.bash");
    for (line, expected) in [("re", "reload"), ("gc --va", "--valid")] {
        assert_eq!(completed(&file, line), expected, "{line}");
    }
}

fn completed(file: &Path, line: &str) -> String {
    let script = r#"source "$1"; COMP_WORDS=(cnitool $2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _cnitool cnitool "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; echo "${COMPREPLY[*]}""#;
    let mut bash = Command::new("bash");
    let output = bash
        .args(["-c", script, "bash"])
        .arg(file)
        .arg(line)
        .output();
    String::from_utf8(output.unwrap().stdout)
        .unwrap()
        .trim()
        .to_owned()
}
