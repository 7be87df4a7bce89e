//! A node that switches between the reference and ours without draining: the plugins of further
//! networks. `switching` covers the cluster's chain, `dhcp` its daemon. `.ci/run` also runs this file in
//! a virtual machine, because this machine's kernel may lack some kinds of links.

use std::path::Path;

use serde_json::Value;
use tests::{Chain, Host, Place as _, REFERENCE, Removal, Sandbox, Snapshot};

const CHAINS: [&[&str]; 8] = [
    &["macvlan"],
    &["ipvlan"],
    &["vlan"],
    &["dummy"],
    &["host-device"],
    &["tap"],
    &["macvlan", "sbr"],
    &["macvlan", "vrf"],
];

/// An attachment by one of the implementations.
struct Attached<'h> {
    host: &'h Host,
    ours: Chain<'h>,
    before: Snapshot,
    a: Sandbox,
    result: Value,
}

/// Which one runs ADD.
#[derive(Clone, Copy)]
enum Adds {
    Ours,
    Reference,
}

/// Runs `work` with an attachment of each chain that the kernel supports, each on a host of its own.
fn for_each_chain(adds: Adds, work: impl Fn(&Attached<'_>)) {
    for plugins in CHAINS {
        let host = Host::new();
        let has = |plugin: &&str| match *plugin {
            "host-device" | "tap" | "sbr" => true,
            kind => host.has_kind(kind),
        };
        // Debian's version of the reference lacks dummy and tap.
        let both = |plugin| has(plugin) && Path::new(REFERENCE).join(plugin).exists();
        if !plugins.iter().all(both) {
            continue;
        }
        eprintln!("{plugins:?}");
        let ours = Chain::new(&host, plugins);
        let (a, before) = (host.sandbox("a"), host.snapshot());
        let result = match adds {
            Adds::Ours => ours.add(&a),
            Adds::Reference => ours.by_reference().add(&a),
        };
        let host = &host;
        work(&Attached {
            host,
            ours,
            before,
            a,
            result: result.unwrap(),
        });
    }
}

impl Attached<'_> {
    fn check(&self) {
        let all = self.ours.len();
        self.ours.check_first(all, (&self.a, &self.result)).unwrap();
    }

    fn remove(&self, chain: &Chain<'_>, removal: Removal) {
        chain.remove(removal, (&self.a, &self.result)).unwrap();
    }

    /// Checks that the sandbox is as before.
    fn expect_empty(&self) {
        assert_eq!(self.a.links(), ["lo"]);
        // The kernel adds a rule with the first VRF, and keeps it.
        let rules = self.a.ip("rule");
        let rules = rules.lines().filter(|it| !it.contains("l3mdev-table"));
        assert_eq!(rules.count(), 3, "{}", self.a.ip("rule"));
    }

    /// Checks that no lease and no record is left.
    fn expect_released(&self) {
        let mut left = self.host.snapshot().differences(&self.before);
        left.retain(|it| it.starts_with("lease ") || it.starts_with("record "));
        assert_eq!(left, Vec::<String>::new());
    }
}

#[test]
fn what_the_reference_attached_is_checked_kept_and_deleted() {
    for_each_chain(Adds::Reference, |it| {
        it.check();
        it.ours.gc(&[&it.a]).unwrap();
        it.check();
        it.remove(&it.ours, Removal::Del);
        it.expect_empty();
        it.expect_released();
    });
}

/// Nothing names the sandbox of the reference's attachment, so its links end with it.
#[test]
fn what_the_reference_attached_is_released_without_the_sandbox() {
    for removal in [Removal::DelForgotten, Removal::Gc] {
        for_each_chain(Adds::Reference, |it| {
            it.remove(&it.ours, removal);
            it.expect_released();
            assert!(it.a.has_link("eth0"));
            it.a.remove();
            it.remove(&it.ours, removal);
            it.expect_released();
        });
    }
}

/// The reference leaves the records, and a device down and without addresses. Its macvlan fails CHECK
/// behind any vrf, which moves the subnet's route, so the last plugin alone runs CHECK.
#[test]
fn what_ours_attached_is_checked_and_deleted_by_the_reference() {
    for_each_chain(Adds::Ours, |it| {
        let theirs = it.ours.by_reference();
        let check = theirs.call(theirs.len() - 1, "CHECK", (&it.a, &it.result));
        check.ok();
        it.remove(&theirs, Removal::Del);
        assert!(it.host.leases("pods").is_empty());
        it.expect_empty();
        it.ours.gc(&[]).unwrap();
        it.host.snapshot().assert_same_as(&it.before);
    });
}
