//! Rules and chains as the kernel lists them.

use super::*;

fn compared(what: Part, value: &[u8]) -> HeldRule {
    HeldRule {
        chain: "forward".to_owned(),
        verdict: Some(Verdict::Accept),
        is_unconditional: false,
        looks_up: false,
        compared: vec![Compared {
            what,
            value: value.to_vec(),
        }],
    }
}

#[test]
fn links_are_named_whole_or_by_their_beginning() {
    for (value, is_for) in [
        (&b"cni0\0"[..], true),
        (b"cni0\0\0\0\0\0\0\0\0\0\0\0\0", true),
        (b"cni", true),
        (b"cni\0", false),
        (b"cni01\0", false),
    ] {
        let rule = compared(Part::LinkName, value);
        assert_eq!(rule.is_for_link("cni0"), is_for, "{value:?}");
        assert!(!compared(Part::Other, value).is_for_link("cni0"));
    }
}

#[test]
fn networks_are_named_by_themselves_a_wider_one_or_an_address() {
    let network: IpNetwork = "10.1.0.0/16".parse().unwrap();
    for (value, is_for) in [
        (&[10, 1][..], true),
        (&[10, 1, 0, 0], true),
        (&[10, 0, 0, 0], true),
        (&[10, 1, 7, 2], true),
        (&[10, 2, 0, 0], false),
        (&[0, 0, 0, 0], false),
        (&[6], false),
    ] {
        let rule = compared(Part::NetworkHeader, value);
        assert_eq!(rule.is_for_network(network), is_for, "{value:?}");
    }
}

#[test]
fn rule_that_is_cut_short_is_refused() {
    assert!(HeldRule::read(&[8, 0, 2, 0, b'f', b'w', b'd', 0]).is_some());
    assert_eq!(HeldRule::read(&[9, 0, 2, 0, b'f', b'w', b'd', 0]), None);
    assert_eq!(HeldRule::read(&[8, 0, 4, 0, 200, 0, 1, 0]), None);
}
