use super::*;

#[test]
fn record_is_named_after_its_holder() {
    for (content, name) in [("c1\r\neth0", "c1:eth0"), ("c1", "c1")] {
        let holder = Holder::parse(content.as_bytes()).unwrap();
        assert_eq!(holder.joined(SEPARATOR), name);
        assert_eq!(parse_name(name), Some(holder));
    }
    for name in ["", ":eth0", "c1:", ".hidden", "c1:a:b"] {
        assert_eq!(parse_name(name), None, "{name:?}");
    }
}

#[test]
fn every_address_of_a_block_has_a_bit_of_its_own() {
    let bits = (0..=u16::MAX).map(|low| {
        let [c, d] = low.to_be_bytes();
        bit_of([10, 1, c, d].into())
    });
    let distinct: std::collections::HashSet<_> = bits.collect();
    assert_eq!(distinct.len(), 65_536);
    assert!(distinct.iter().all(|(byte, _)| *byte < 65_536 / 8));
}
