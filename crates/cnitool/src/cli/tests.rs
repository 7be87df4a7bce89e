use cni::SpecVersion;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn command_line_is_well_formed() {
    command().debug_assert();
}

#[test]
fn help_lists_every_version() {
    for version in SpecVersion::ALL {
        assert!(LONG_VERSION.contains(version.as_str()), "{version}");
    }
}

#[test]
fn help_is_a_command_and_an_option() {
    for command in ["", " limit"] {
        let [command, option] = [
            format!("cnitool help{command}"),
            format!("cnitool{command} --help"),
        ]
        .map(|line| parse(&line).unwrap_err().to_string());
        assert_eq!(command, option);
    }
}

#[test]
fn namespace_is_left_out_where_it_means_nothing() {
    assert!(parse("cnitool status pods").is_ok());
    assert!(parse("cnitool gc pods /run/netns/a").is_ok());
    for line in ["cnitool add pods", "cnitool del pods", "cnitool check pods"] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn gc_needs_proof_unless_attachments_are_listed() {
    for (arguments, count, is_all) in [
        ("", 0, false),
        (" --all", 0, true),
        (" --valid c1/eth0", 1, false),
    ] {
        let line = format!("cnitool gc pods{arguments}");
        let collect = match parse(&line).unwrap().command {
            Command::OfNetwork(OfNetwork::Gc { collect, .. }) => collect,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (collect.valid.len(), collect.all),
            (count, is_all),
            "{line}"
        );
    }
    for line in ["--valid c1", "--valid ../x/eth0", "--all --valid c1/eth0"] {
        assert!(parse(&format!("cnitool gc pods {line}")).is_err(), "{line}");
    }
}
