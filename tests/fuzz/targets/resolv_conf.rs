//! Parser of resolv.conf(5).

#![no_main]

use host_local::resolv_conf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let dns = resolv_conf::parse(text);
    let words = [&dns.nameservers, &dns.search, &dns.options]
        .into_iter()
        .flatten();
    assert!(
        words
            .chain(&dns.domain)
            .all(|it| !it.contains(char::is_whitespace))
    );
});
