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
