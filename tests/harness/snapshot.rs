//! Everything that an attachment could leave on a host, to be compared before and after.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::host::Host;
use crate::place::{Place, text};
use crate::{Network, Sandbox, eventually};

/// Links, addresses, routes, rules, qdiscs, sysctls, leases and port records at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, String>);

impl Snapshot {
    pub(crate) fn take(host: &Host) -> Self {
        eventually(|| has_local_routes(host));
        let mut facts = Self(BTreeMap::new());
        facts.add_links(host);
        facts.add_text("routes 4", &host.ip("-4 route show table all"));
        facts.add_text("routes 6", &host.ip("-6 route show table all"));
        facts.add_text(
            "rules",
            &host.run("nft", &["--stateless", "list", "ruleset"]),
        );
        facts.add_qdiscs(host);
        for dir in [host.lease_dir(), "/var/lib/cni".into()] {
            facts.add_files(&dir);
        }
        facts.add_sysctls(host);
        facts.add_records();
        facts
    }

    /// Checks that nothing differs from `before`.
    #[track_caller]
    pub fn assert_same_as(&self, before: &Self) {
        let differences = self.differences(before);
        assert!(differences.is_empty(), "{differences:#?}");
    }

    /// Describes the differences from `before`.
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let of = |facts: &Self, key: &str| facts.0.get(key).cloned().unwrap_or_default();
        let keys = self.0.keys().chain(before.0.keys());
        let mut changed: Vec<_> = keys
            .filter(|key| self.0.get(*key) != before.0.get(*key))
            .map(|key| format!("{key}: was {:?}, is {:?}", of(before, key), of(self, key)))
            .collect();
        changed.sort();
        changed.dedup();
        changed
    }

    fn add(&mut self, key: String, value: String) {
        self.0.insert(key, value);
    }

    fn add_text(&mut self, what: &str, text: &str) {
        // Link-local addresses and the routes of multicast come and go with a carrier, which tests do
        // not control; routes via such an address do not.
        let is_local = |line: &&str| {
            let is_address = line.contains("fe80:") && !line.contains("via fe80:");
            is_address || line.starts_with("multicast ff00::/8")
        };
        let lines = text.lines().filter(|line| !is_local(line));
        for line in lines {
            // The carrier of a link changes by itself.
            let line = line.replace(" linkdown", "").replace(" dead", "");
            self.add(format!("{what}: {}", line.trim_end()), "there".into());
        }
    }

    fn add_links(&mut self, host: &Host) {
        for link in host.ip_json("address show") {
            let name = text(&link["ifname"]);
            let is_up = link["flags"]
                .as_array()
                .is_some_and(|flags| flags.contains(&"UP".into()));
            let known = ["address", "mtu", "master", "ifalias", "promiscuity"];
            for key in known {
                self.add(format!("link {name} {key}"), link[key].to_string());
            }
            self.add(format!("link {name} up"), is_up.to_string());
            let addresses = link["addr_info"].as_array().into_iter().flatten();
            for address in addresses.filter(|address| address["scope"] != "link") {
                self.add(address_key(&name, address), "there".into());
            }
        }
    }

    /// Adds qdiscs and filters, without the kernel's hash tables of filters.
    fn add_qdiscs(&mut self, host: &Host) {
        let listed = host.tc("-json qdisc show");
        let mut listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        listed.retain(|qdisc| qdisc["handle"] != "0:");
        for mut qdisc in listed {
            if let Some(options) = qdisc["options"].as_object_mut() {
                options.remove("direct_packets_stat");
            }
            let link = text(&qdisc["dev"]);
            let (place, hook) = match qdisc["parent"].as_str() {
                Some(parent) => (parent, "ingress"),
                None => ("root", "root"),
            };
            self.add(format!("qdisc of {link} on {place}"), qdisc.to_string());
            let filters = host.tc(&format!("filter show dev {link} {hook}"));
            let is_fact = |line: &&str| line.starts_with([' ', '\t']) || line.contains("flowid");
            let filters: Vec<_> = filters.lines().filter(is_fact).collect();
            self.add(format!("filters of {link} on {place}"), filters.join("; "));
        }
    }

    /// Adds sysctls of every link and of the namespace's bridges.
    fn add_sysctls(&mut self, host: &Host) {
        let conf = ["ipv4", "ipv6"].map(|family| format!("/proc/sys/net/{family}/conf"));
        let of_links = conf.iter().flat_map(|dir| entries(Path::new(dir)));
        for dir in of_links.chain(["/proc/sys/net/bridge".into()]) {
            for file in entries(&dir) {
                let key = file
                    .strip_prefix("/proc/sys")
                    .unwrap()
                    .display()
                    .to_string();
                // Skips sysctls that are write-only or do not exist yet.
                if let Some(value) = host.sysctl(&key) {
                    self.add(format!("sysctl {key}"), value);
                }
            }
        }
    }

    /// Adds the records of the plugins; their directories contain nothing else.
    fn add_records(&mut self) {
        let plugins = [
            "portmap",
            "firewall",
            "tuning",
            "bandwidth",
            "witness",
            "sbr",
            "host-device",
            "vrf",
        ]
        .map(|it| format!("/run/cni/{it}"));
        for file in plugins.iter().flat_map(|dir| entries(Path::new(dir))) {
            let record = fs::read_to_string(&file).unwrap();
            self.add(format!("record {}", file.display()), record);
        }
        for link in entries(Path::new("/run/cni/localnet")) {
            let users = entries(&link);
            self.add(format!("users of {}", link.display()), format!("{users:?}"));
        }
    }

    /// Adds leases; `last_reserved_ip`, the lock and other files without an address stay after DEL.
    fn add_files(&mut self, dir: &Path) {
        let Ok(networks) = fs::read_dir(dir) else {
            return;
        };
        for network in networks {
            let path = network.unwrap().path();
            for (address, content) in crate::host::leases_in(&path) {
                self.add(format!("lease {}/{address}", path.display()), content);
            }
        }
    }
}

/// Returns the entries of a directory; empty if it does not exist.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(dir).into_iter().flatten();
    listed.map(|entry| entry.unwrap().path()).collect()
}

fn address_key(link: &str, address: &Value) -> String {
    format!(
        "address {link} {}/{}",
        text(&address["local"]),
        address["prefixlen"]
    )
}

/// Whether each IPv6 address of a link with a carrier has its local route. The kernel adds that route
/// in the background, after duplicate address detection or without it (`addrconf_dad_work`). Until
/// then, the address is tentative. A snapshot shows no link-local addresses.
fn has_local_routes(host: &Host) -> bool {
    let routes = host.ip("-6 route show table local");
    let links = host.ip_json("-6 address show");
    let carried = links.iter().filter(|link| {
        let flags = link["flags"].as_array();
        flags.is_some_and(|it| it.contains(&"LOWER_UP".into()))
    });
    let mut addresses = carried.flat_map(|link| link["addr_info"].as_array().into_iter().flatten());
    addresses.all(|it| {
        let route = format!("local {} ", text(&it["local"]));
        it["scope"] == "link" || it["dadfailed"] == true || routes.contains(&route)
    })
}

/// Returns a host where a first attachment to the network has come and gone, its snapshot, and a
/// sandbox. The snapshot has what the first attachment leaves, such as a bridge.
pub fn warm_host(network: impl Fn(&Host) -> Network<'_>) -> (Host, Snapshot, Sandbox) {
    let host = Host::new();
    let first = host.sandbox("first");
    network(&host).add(&first);
    network(&host).del(&first);
    let (before, a) = (host.snapshot(), host.sandbox("a"));
    (host, before, a)
}
