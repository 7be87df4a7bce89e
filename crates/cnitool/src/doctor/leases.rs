//! Checks for leases and for elements in `nf_tables` of sandboxes that no longer exist.

use std::collections::{BTreeMap, BTreeSet};

use cni::Attachment;
use itertools::Itertools as _;
use node::{Lease, Node, OwnedElement, Program, lease_directories};
use serde_json::json;

use super::finding::{Finding, count, or_ok, quoted, some_of};

use upkeep::{Candidate, Liveness, liveness};

/// Reports leases of attachments that no longer exist or that may exist unseen, and lease files
/// that name no holder. Returns one finding of level OK if there are leases, but none of these.
pub fn judge(node: &Node) -> Vec<Finding> {
    let findings = stale_leases(node).chain(torn_leases(node));
    let count = node.leases.len();
    let ok = || format!("{count} leases, each of a known sandbox");
    or_ok(findings, (count > 0).then(ok))
}

/// Finds leases of attachments that no longer exist, and leases of attachments that may exist where
/// this process cannot see them. Returns one finding for each network and reason.
fn stale_leases(node: &Node) -> impl Iterator<Item = Finding> {
    let mut stale = BTreeMap::<(&str, Option<String>), Vec<&Lease>>::new();
    for lease in &node.leases {
        let reason = match Candidate::of_lease(node, lease).map(|it| liveness(node, &it)) {
            Some(Liveness::Gone) => None,
            Some(Liveness::Unproven(reason)) => Some(reason.to_string()),
            _ => continue,
        };
        let of = stale.entry((&lease.network, reason)).or_default();
        of.push(lease);
    }
    let stale = stale.into_iter();
    stale.map(|((network, unseen), leases)| {
        let names = some_of(leases.iter().map(|it| holder_of(it)));
        let number = count(leases.len(), "address");
        let whom = match unseen {
            Some(_) => "leased, but no sandbox of the holder is visible",
            None => "leased to sandboxes that no longer exist",
        };
        let message = format!("network {network}: {number} {whom}: {names}");
        let finding = Finding::warning(message);
        if let Some(reason) = unseen {
            return finding.impact(format!("The holders may be live: {reason}."));
        }
        let finding = finding.impact("No pod can get them until they are released.");
        if gc_finds(node, network, &leases) {
            return finding.fix(format!("cnitool gc {}", quoted(network)));
        }
        finding
    })
}

fn holder_of(lease: &Lease) -> String {
    let container = lease.holder.as_ref().map(|it| it.container.as_str());
    format!("{} ({})", lease.address, container.unwrap_or_default())
}

/// Returns whether `cnitool gc` would find all of `leases`: they are in lease directories of the
/// configured `network`, and the network does not set `disableGC`.
fn gc_finds(node: &Node, network: &str, leases: &[&Lease]) -> bool {
    node.configuration.network(network).is_some_and(|network| {
        let directories = lease_directories(&network.list);
        let finds = |lease: &&Lease| directories.iter().any(|it| lease.is_in(it));
        !network.list.disable_gc && leases.iter().all(finds)
    })
}

/// Finds lease files without a valid container ID. No DEL can match them.
fn torn_leases(node: &Node) -> Option<Finding> {
    let torn = node.leases.iter().filter(|it| it.holder.is_none());
    let paths: Vec<_> = torn.map(|it| it.path.display()).collect();
    let number = count(paths.len(), "lease");
    let message = format!("{number} without holder: {}", some_of(&paths));
    (!paths.is_empty()).then(|| {
        let impact = "A crash leaves such files. The next ADD of this host-local removes them.";
        Finding::warning(message).impact(impact)
    })
}

/// Finds elements in this suite's tables of `nf_tables` whose attachment has no lease and no longer
/// exists, or may exist where this process cannot see it. Also finds elements whose tag names no
/// attachment.
pub fn elements(node: &Node) -> Vec<Finding> {
    let traces = node.traces().into_iter();
    let held = traces.filter(|(_, it)| it.leases.is_empty() && !it.elements.is_empty());
    let findings = held.filter_map(|(owner, traces)| {
        let tables: BTreeSet<_> = traces.elements.iter().map(|it| it.table).collect();
        let Some(candidate) = Candidate::of_traces(&owner, &traces) else {
            let is_alone = !traces.elements.iter().any(|it| is_in_sandbox(node, it));
            return is_alone.then(|| untagged(&owner, &tables));
        };
        let has = format!("{owner} has elements in {}", tables.iter().join(", "));
        match liveness(node, &candidate) {
            Liveness::Live | Liveness::Young => None,
            Liveness::Unproven(reason) => Some(
                Finding::warning(format!("{has}, but no sandbox of it is visible"))
                    .impact(format!("It may be live: {reason}.")),
            ),
            Liveness::Gone => Some(
                Finding::warning(format!("{has}, and nothing else"))
                    .impact("Its sandbox no longer exists, but its ports may still be held.")
                    .fix(deletions(node, &candidate.attachment, &tables)),
            ),
        }
    });
    findings.collect()
}

/// Returns the finding for elements in `tables` whose tag `owner` names no attachment.
fn untagged(owner: &str, tables: &BTreeSet<&str>) -> Finding {
    let names = tables.iter().join(", ");
    let message = format!("elements of {owner:?}, which is not an attachment, in {names}");
    let ours = node::tables().into_iter();
    let ours = ours.filter(|it| tables.contains(it.name));
    let ours = ours.sorted_by_key(|it| it.name);
    let mut lists = ours.map(|it| format!("nft list table {} {}", it.family.name(), it.name));
    Finding::warning(message)
        .impact("No DEL matches them. Remove the listed elements with `nft delete element`.")
        .fix(lists.join("\n"))
}

/// Returns shell commands that call DEL of a plugin for each of `tables`, one in each line. Several
/// plugins may have a table; one that the network uses comes first.
fn deletions(node: &Node, attachment: &Attachment, tables: &BTreeSet<&str>) -> String {
    let network = node.configuration.network(attachment.network.as_str());
    let is_used =
        |name: &&&str| network.is_some_and(|it| it.plugins.iter().any(|it| it.program == **name));
    let ours = node::elements().into_iter();
    let ours = ours.filter(|(_, it)| tables.contains(it.table));
    let plugins = ours.filter_map(|(plugins, _)| {
        let used = plugins.iter().find(is_used);
        used.or(plugins.first()).copied()
    });
    let plugins = plugins.sorted().dedup();
    plugins.map(|it| delete(node, attachment, it)).join("\n")
}

/// Returns a shell command that calls DEL of `plugin` for the attachment.
fn delete(node: &Node, attachment: &Attachment, plugin: &str) -> String {
    let [container, interface] =
        [attachment.container.as_str(), attachment.interface.as_str()].map(quoted);
    let path = match node.configuration.programs.get(plugin) {
        Some(Program::Found { path, .. }) => quoted(&path.display()),
        _ => format!("/opt/cni/bin/{plugin}"),
    };
    let network = attachment.network.as_str();
    let request = quoted(&json!({"cniVersion": "1.0.0", "name": network, "type": plugin}));
    let sandbox = format!("CNI_CONTAINERID={container} CNI_IFNAME={interface}");
    format!("echo {request} | CNI_COMMAND=DEL {sandbox} {path}")
}

/// Returns whether the sandbox behind an untagged link has the element's address.
fn is_in_sandbox(node: &Node, element: &OwnedElement) -> bool {
    let address = element.address;
    address.is_some_and(|it| node.host_links.of_address(it).is_some())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use netlink::LinkKind;

    use super::super::finding::Level;
    use super::super::tests::{attached, lease, levels, link, node};
    use super::*;
    use node::{HostLink, HostLinks};

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local"}}]}"#;

    /// Returns a node with the network `pods`, whose bridge exists. The containers `a` and `b` hold
    /// leases that are one hour old.
    fn leased() -> Node {
        let mut node = node(&[("pods.conflist", LIST)]);
        let [a, b] = [("10.1.0.2", "a"), ("10.1.0.3", "b")].map(|(address, container)| Lease {
            since: SystemTime::now().checked_sub(Duration::from_hours(1)),
            ..lease("pods", address, container)
        });
        node.leases = vec![a, b];
        let mut bridge = link(3, "cni0");
        bridge.kind = LinkKind::Bridge;
        node.links = vec![bridge];
        node
    }

    fn host_link(owner: Option<&str>, addresses: Option<&[&str]>) -> HostLink {
        let addresses = addresses.map(|all| all.iter().map(|it| it.parse().unwrap()).collect());
        let mut end = link(7, "veth7");
        end.master = Some(3);
        HostLink {
            link: end,
            owner: owner.map(str::to_owned),
            addresses,
        }
    }

    #[test]
    fn leases_of_who_lives_are_well() {
        let mut node = leased();
        node.attached = vec![attached("pods", "a")];
        let tagged = host_link(Some("cni:pods/b/eth0"), Some(&[]));
        node.host_links = HostLinks(vec![tagged]);
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        // A link that the Go plugins made has no tag.
        let untagged = host_link(None, Some(&["10.1.0.3"]));
        node.host_links = HostLinks(vec![untagged]);
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        // The link is tagged with another pod, so it does not prove that the container `b` is live.
        node.host_links = HostLinks(vec![host_link(Some("cni:pods/c/eth0"), Some(&[]))]);
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
    }

    #[test]
    fn stale_leases_are_reported_by_network() {
        let mut node = leased();
        let mut gone = attached("pods", "a");
        gone.is_alive = false;
        node.attached = vec![gone];
        let [pods] = judge(&node).try_into().unwrap();
        let pods: Finding = pods;
        assert_eq!(
            (pods.level, &*pods.fix),
            (Level::Warning, "cnitool gc pods")
        );
        assert!(
            pods.message
                .ends_with("no longer exist: 10.1.0.2 (a), 10.1.0.3 (b)"),
            "{pods:?}"
        );
        // With `disableGC`, `cnitool gc` does nothing, so the finding does not recommend it.
        let silent = LIST.replace("\"plugins\"", "\"disableGC\": true, \"plugins\"");
        let elsewhere = LIST.replace("\"host-local\"", "\"host-local\", \"dataDir\": \"/x\"");
        for list in [silent, elsewhere] {
            node.configuration =
                super::super::tests::node(&[("pods.conflist", &list)]).configuration;
            assert_eq!(judge(&node)[0].fix, "", "{list}");
        }
    }

    #[test]
    fn no_command_is_printed_where_the_holder_may_live() {
        let may_live = |node: &Node, reason: &str| {
            let findings = judge(node);
            assert_eq!(levels(&findings), [Level::Warning]);
            assert_eq!(findings[0].fix, "");
            assert!(findings[0].impact.contains(reason), "{findings:?}");
        };
        let mut node = leased();
        for hidden in [host_link(None, None), host_link(None, Some(&[]))] {
            node.host_links = HostLinks(vec![hidden]);
            may_live(&node, "no known address of the sandbox behind veth7");
        }
        node.links.clear();
        may_live(&node, "has neither bridge cni0 nor");
        let other = LIST.replace("\"bridge\"", "\"weave-net\"");
        node.configuration = super::super::tests::node(&[("pods.conflist", &other)]).configuration;
        may_live(&node, "plugin weave-net makes no link");
        node.configuration.files.clear();
        may_live(&node, "no network pods is configured");
    }

    #[test]
    fn of_leases_whose_add_may_be_under_way_nothing_is_said() {
        let mut node = leased();
        for lease in &mut node.leases {
            lease.since = Some(SystemTime::now());
        }
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }

    #[test]
    fn leases_without_holder_are_reported() {
        let mut node = node(&[]);
        node.leases = vec![lease("pods", "10.1.0.2", "a")];
        node.leases[0].holder = None;
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert_eq!(findings[0].fix, "");
    }

    #[test]
    fn elements_without_lease_and_link_are_reported() {
        let element = |owner: &str| OwnedElement {
            table: "cni-portmap",
            owner: owner.to_owned(),
            port: None,
            address: None,
        };
        let mut node = leased();
        node.leases.truncate(1);
        node.attached = vec![attached("pods", "a"), attached("pods", "b")];
        node.firewall.elements = ["a", "b", "c", "c"]
            .map(|it| element(&format!("cni:pods/{it}/eth0")))
            .into();
        let findings = elements(&node);
        let message = "cni:pods/c/eth0 has elements in cni-portmap, and nothing else";
        let [finding] = findings.as_slice() else {
            panic!("{findings:?}");
        };
        assert_eq!(finding.message, message);
        let fix = "CNI_COMMAND=DEL CNI_CONTAINERID=c CNI_IFNAME=eth0 /opt/cni/bin/portmap";
        assert!(finding.fix.ends_with(fix), "{finding:?}");
        let other = LIST.replace("\"bridge\"", "\"weave-net\"");
        node.configuration = super::super::tests::node(&[("pods.conflist", &other)]).configuration;
        let [finding] = <[Finding; 1]>::try_from(elements(&node)).unwrap();
        assert_eq!(finding.fix, "");
        let reason = "may be live: plugin weave-net makes no link";
        assert!(finding.impact.contains(reason), "{finding:?}");
    }

    #[test]
    fn elements_that_no_del_matches_are_reported_without_del() {
        let element = |table, owner: &str| OwnedElement {
            table,
            owner: owner.to_owned(),
            port: None,
            address: None,
        };
        let mut node = node(&[]);
        for owner in [
            "",
            "cni:pods/c",
            "pods/c/eth0",
            "cni:pods//eth0",
            "cni:pods/../eth0",
        ] {
            node.firewall.elements =
                vec![element("cni-portmap", owner), element("cni-bridge", owner)];
            let findings = elements(&node);
            assert_eq!(levels(&findings), [Level::Warning], "{owner}");
            assert_eq!(
                findings[0].message,
                format!(
                    "elements of {owner:?}, which is not an attachment, in cni-bridge, cni-portmap"
                )
            );
            assert_eq!(
                findings[0].fix,
                "nft list table bridge cni-bridge\nnft list table inet cni-portmap"
            );
        }
    }
}
