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
fn namespace_is_left_out_where_it_means_nothing() {
    assert!(parse("cnitool status pods").is_ok());
    assert!(parse("cnitool gc pods /run/netns/a").is_ok());
    for line in ["cnitool add pods", "cnitool del pods", "cnitool check pods"] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn gc_needs_proof_unless_attachments_are_listed() {
    let gone = |line: &str| match parse(line).unwrap().command {
        Command::OfNetwork(OfNetwork::Gc(collect)) => collect.gone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(gone("cnitool gc pods"), Gone::Proven);
    assert_eq!(gone("cnitool gc pods --all"), Gone::All);
    let listed = vec![attachment_id("c1/eth0").unwrap()];
    let line = "cnitool gc pods --valid c1/eth0";
    assert_eq!(gone(line), Gone::Unlisted(listed));
    for line in ["--valid c1", "--valid ../x/eth0", "--all --valid c1/eth0"] {
        assert!(parse(&format!("cnitool gc pods {line}")).is_err(), "{line}");
    }
}
