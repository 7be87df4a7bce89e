//! Parser of resolv.conf(5).

use std::path::Path;

use anyhow::Context as _;
use cni::result::Dns;

use crate::read;

/// Reads the DNS settings in the file at `path`, the value of `resolvConf`.
///
/// # Errors
/// The file cannot be read or is not UTF-8.
pub fn read(path: &Path) -> anyhow::Result<Dns> {
    let text = read::named(path).with_context(|| format!("read resolvConf {}", path.display()))?;
    Ok(parse(&text))
}

/// Parses the content of a resolv.conf(5). The last `domain` line and the last `search` line count;
/// name servers and options accumulate. Ignores unknown keywords, as glibc does.
pub fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let settings = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = settings.split_whitespace();
        let keyword = words.next();
        let mut values = words.map(str::to_owned);
        match keyword {
            Some("nameserver") => dns.nameservers.extend(values.next()),
            Some("domain") => dns.domain = values.next(),
            Some("search") => dns.search = values.collect(),
            Some("options") => dns.options.extend(values),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keywords_are_read() {
        let dns = parse(
            "# made by hand\nnameserver 10.1.0.1 # first\nnameserver\tfd00::1\ndomain example.test\n\
             search old\nsearch a.test b.test\noptions ndots:5 rotate\noptions edns0\nsortlist 1.2.3.4\n;x\n",
        );
        assert_eq!(dns.nameservers, ["10.1.0.1", "fd00::1"]);
        assert_eq!(dns.domain.as_deref(), Some("example.test"));
        assert_eq!(dns.search, ["a.test", "b.test"]);
        assert_eq!(dns.options, ["ndots:5", "rotate", "edns0"]);
    }

    #[test]
    fn empty_file_has_no_settings() {
        assert!(parse("").is_empty());
        assert!(parse("nameserver\ndomain\nsearch\n").is_empty());
    }
}
