//! Reads and changes the state of a namespace, on the host or in a sandbox.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

/// A place with a network of its own.
pub trait Place {
    /// Runs `work` there: its sockets, sysctls and child processes belong to that network.
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T;

    /// Runs a command there, which must succeed, and returns its output.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.enter(|| run(program, arguments))
    }

    /// Runs `ip ARGUMENTS`, split at white space; it must succeed.
    fn ip(&self, arguments: &str) -> String {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        self.run("ip", &arguments)
    }

    /// Returns the list of `ip -json -details ARGUMENTS`.
    fn ip_json(&self, arguments: &str) -> Vec<Value> {
        let text = self.ip(&format!("-json -details {arguments}"));
        let listed: Vec<Value> = match text.trim() {
            "" => Vec::new(),
            text => serde_json::from_str(text).unwrap(),
        };
        // iproute2 prints empty objects for filtered entries.
        let is_empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
        listed
            .into_iter()
            .filter(|value| !is_empty(value))
            .collect()
    }

    /// Runs `tc ARGUMENTS`, split at white space; it must succeed.
    fn tc(&self, arguments: &str) -> String {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        self.run("tc", &arguments)
    }

    /// Runs `sh -ec LINE`, which must succeed.
    fn sh(&self, line: &str) -> String {
        self.run("sh", &["-ec", line])
    }

    /// Returns the ruleset from this table on, as `nft list ruleset` prints it; empty if the table
    /// does not exist. The name has the family: `inet cni-masquerade`.
    fn rules_from(&self, table: &str) -> String {
        let all = self.run("nft", &["list", "ruleset"]);
        let start = all.find(&format!("table {table}"));
        start.map_or_else(String::new, |start| all[start..].to_owned())
    }

    /// Returns the qdiscs of a link as `tc` shows them, without the kernel's default ones.
    fn qdiscs(&self, link: &str) -> Vec<Value> {
        let listed = self.tc(&format!("-json qdisc show dev {link}"));
        let mut listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        listed.retain(|qdisc| qdisc["handle"] != "0:");
        listed
    }

    /// Returns the rate of a link's root TBF in bytes per second, and its burst in bytes.
    fn limit(&self, link: &str) -> Option<(u64, u64)> {
        let qdiscs = self.qdiscs(link);
        let root = qdiscs
            .iter()
            .find(|it| it["root"] == true && it["kind"] == "tbf")?;
        let number = |key: &str| root["options"][key].as_u64().unwrap();
        Some((number("rate"), number("burst")))
    }

    /// Returns the packets that the qdiscs of a link dropped. A parent also counts most of what its
    /// leaf drops.
    fn dropped(&self, link: &str) -> u64 {
        let shown = self.tc(&format!("-statistics -json qdisc show dev {link}"));
        let shown: Vec<Value> = serde_json::from_str(&shown).unwrap();
        let drops = shown.iter().map(|it| it["drops"].as_u64().unwrap());
        drops.max().unwrap()
    }

    /// Returns the names of all links, sorted.
    fn links(&self) -> Vec<String> {
        let links = self.ip_json("link show");
        let mut names: Vec<_> = links.iter().map(|link| text(&link["ifname"])).collect();
        names.sort();
        names
    }

    /// Returns a link as `ip -json -details link` shows it; it must exist.
    fn link(&self, name: &str) -> Value {
        self.ip_json(&format!("link show dev {name}")).remove(0)
    }

    /// Returns the ifb devices as `ip -json -details link` shows them.
    fn ifbs(&self) -> Vec<Value> {
        self.ip_json("link show type ifb")
    }

    /// Returns whether a link of that name exists.
    fn has_link(&self, name: &str) -> bool {
        self.links().iter().any(|link| link == name)
    }

    /// Returns the hardware address of a link.
    fn mac(&self, name: &str) -> String {
        text(&self.link(name)["address"])
    }

    /// Returns the VLANs of a bridge or port, as `bridge vlan show` prints them: `100 PVID Egress
    /// Untagged`.
    fn vlans(&self, link: &str) -> Vec<String> {
        let shown = self.run("bridge", &["vlan", "show", "dev", link]);
        let lines = shown.lines().skip(1).map(|line| {
            let words = line.split_whitespace().filter(|word| *word != link);
            words.collect::<Vec<_>>().join(" ")
        });
        lines.filter(|line| !line.is_empty()).collect()
    }

    /// Returns the addresses of a link with prefix lengths, without link-local ones; IPv4 first,
    /// then in the order of `ip`.
    fn addresses(&self, name: &str) -> Vec<String> {
        let scope = |address: &&Value| address["scope"] != "link";
        address_list(&self.ip_json(&format!("address show dev {name}")), scope)
    }

    /// Returns the IPv6 link-local addresses of a link.
    fn link_local_addresses(&self, name: &str) -> Vec<String> {
        let scope = |address: &&Value| address["scope"] == "link" && address["family"] == "inet6";
        address_list(&self.ip_json(&format!("address show dev {name}")), scope)
    }

    /// Returns routes of the main table and both families, without those that the kernel derives
    /// from addresses.
    fn routes(&self) -> Vec<Value> {
        let mut routes = self.ip_json("-4 route show");
        routes.extend(self.ip_json("-6 route show"));
        routes.retain(|route| route["protocol"] != "kernel");
        routes
    }

    /// Returns the gateways of the default routes, IPv4 first.
    fn default_gateways(&self) -> Vec<String> {
        let routes = self.routes();
        let default = routes.iter().filter(|route| route["dst"] == "default");
        default.map(|route| text(&route["gateway"])).collect()
    }

    /// Returns the value of a sysctl by its path below /proc/sys; `None` if the kernel lacks it.
    fn sysctl(&self, key: &str) -> Option<String> {
        let read = self.enter(|| fs::read_to_string(sysctl_path(key)));
        read.ok().map(|value| value.trim_end().to_owned())
    }

    /// Sets a sysctl, which must exist.
    fn set_sysctl(&self, key: &str, value: &str) {
        let written = self.enter(|| fs::write(sysctl_path(key), value));
        written.unwrap_or_else(|error| panic!("sysctl {key}={value}: {error}"));
    }

    /// Returns `addr_assign_type` of a link: 1 if the kernel chose its MAC, 3 if its creator did.
    /// sysfs shows the links of the namespace in which it was mounted.
    fn addr_assign_type(&self, link: &str) -> String {
        self.enter(|| {
            let (sys, none) = ("/run/test/sys", MsFlags::empty());
            fs::create_dir_all(sys).unwrap();
            mount(Some("sysfs"), sys, Some("sysfs"), none, None::<&str>).unwrap();
            let read = fs::read_to_string(format!("{sys}/class/net/{link}/addr_assign_type"));
            umount2(sys, MntFlags::MNT_DETACH).unwrap();
            read.unwrap().trim_end().to_owned()
        })
    }

    /// Returns whether an echo request to `address` is answered within two seconds.
    fn pings(&self, address: &str) -> bool {
        self.answers(&["-W", "2", address])
    }

    /// Returns the same for a request from the address `source`.
    fn pings_from(&self, source: &str, address: &str) -> bool {
        self.answers(&["-W", "2", "-I", source, address])
    }

    /// Returns whether ping(8) with these arguments gets an answer to one request.
    fn answers(&self, arguments: &[&str]) -> bool {
        self.enter(|| {
            let mut ping = Command::new("ping");
            ping.args(["-n", "-c", "1"]).args(arguments);
            ping.stdout(Stdio::null()).stderr(Stdio::null());
            ping.status().expect("ping: install iputils-ping").success()
        })
    }
}

/// Runs a command, which must succeed, and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("run {program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn address_list(links: &[Value], wanted: impl Fn(&&Value) -> bool) -> Vec<String> {
    let addresses = links.iter().filter_map(|link| link["addr_info"].as_array());
    let wanted = addresses.flatten().filter(wanted);
    wanted
        .map(|address| format!("{}/{}", text(&address["local"]), address["prefixlen"]))
        .collect()
}

fn sysctl_path(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key)
}
