//! What is held for sandboxes that are no more: leases, and elements of ours in `nf_tables`.

use std::collections::{BTreeMap, BTreeSet};

use cni::{ContainerId, InterfaceName, NetworkName, Verb};
use serde_json::json;

use super::finding::{Finding, quoted, some_of};
use crate::node::{Held, Lease, Node, Program};

/// Of leases and elements.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings = stale_leases(node);
    findings.extend(torn_leases(node));
    findings.extend(stale_elements(node));
    if findings.is_empty() && !node.leases.is_empty() {
        let found = format!(
            "{} leases, each of a sandbox that is known",
            node.leases.len()
        );
        findings.push(Finding::ok("lease", found));
    }
    findings
}

/// Leases of each network whose sandbox is gone, or that nobody knows of.
fn stale_leases(node: &Node) -> Vec<Finding> {
    let mut stale = BTreeMap::<&str, Vec<&Lease>>::new();
    let is_stale = |it: &&Lease| it.holder.is_some() && !is_used(node, it);
    for lease in node.leases.iter().filter(is_stale) {
        stale.entry(&lease.network).or_default().push(lease);
    }
    let finding = |(network, leases): (&str, Vec<&Lease>)| {
        let name = |it: &&Lease| {
            let container = it
                .holder
                .as_ref()
                .map(|(container, _)| container.to_string());
            format!("{} ({})", it.address, container.unwrap_or_default())
        };
        let names: Vec<_> = leases.iter().map(name).collect();
        let found = format!(
            "network {network}: {} leased to sandboxes that are gone: {}",
            count(leases.len(), "address"),
            some_of(&names)
        );
        Finding::warning("lease", found)
            .means("They are lost to pods, unless a runtime with a cache elsewhere has them.")
            .mend(release(node, network, &leases))
    };
    stale.into_iter().map(finding).collect()
}

/// GC, which releases what belongs to no cached attachment that exists, if the network has it.
fn release(node: &Node, network: &str, leases: &[&Lease]) -> String {
    let list = node.configuration.network(network).map(|it| &it.list);
    if list.is_some_and(|it| it.version >= Verb::Gc.since() && !it.disable_gc) {
        return format!("cnitool gc {}", quoted(network));
    }
    remove(leases)
}

fn remove(leases: &[&Lease]) -> String {
    let files = leases.iter().map(|it| quoted(&it.path.display()));
    format!("rm {}", files.collect::<Vec<_>>().join(" "))
}

/// Files that name no container, or nothing that could be one: no DEL matches them.
fn torn_leases(node: &Node) -> Option<Finding> {
    let torn = node.leases.iter().filter(|it| it.holder.is_none());
    let torn: Vec<_> = torn.collect();
    let paths: Vec<_> = torn.iter().map(|it| it.path.display()).collect();
    let found = format!(
        "{} without holder: {}",
        count(torn.len(), "lease"),
        some_of(&paths)
    );
    (!torn.is_empty()).then(|| {
        Finding::warning("lease", found)
            .means("A crash leaves such. The next ADD by this host-local removes them.")
            .mend(remove(&torn))
    })
}

/// Elements of ours whose owner has neither a lease nor a link nor an entry in the cache.
fn stale_elements(node: &Node) -> Vec<Finding> {
    let leases: BTreeSet<_> = node.leases.iter().filter_map(Lease::owner).collect();
    let is_stale = |Held { owner, .. }: &&Held| {
        !leases.contains(owner) && !has_link(node, owner) && !is_cached(node, owner)
    };
    let mut stale = BTreeMap::<&str, BTreeSet<&str>>::new();
    for element in node.firewall.elements.iter().filter(is_stale) {
        let tables = stale.entry(&element.owner).or_default();
        tables.insert(element.table);
    }
    let finding = |(owner, tables)| element(node, owner, &tables);
    stale.into_iter().map(finding).collect()
}

fn element(node: &Node, owner: &str, tables: &BTreeSet<&str>) -> Finding {
    let names: Vec<_> = tables.iter().copied().collect();
    let names = names.join(", ");
    let Some(mend) = delete(node, owner, tables) else {
        let found = format!("elements of {owner:?}, which is no attachment, in {names}");
        let list = |table: &&str| {
            let family = if *table == "cni-bridge" {
                "bridge"
            } else {
                "inet"
            };
            format!("nft list table {family} {table}")
        };
        let lists: Vec<_> = tables.iter().map(list).collect();
        return Finding::warning("element", found)
            .means("No DEL matches them. `nft delete element` removes them, by what is listed.")
            .mend(lists.join("\n"));
    };
    let found = format!("{owner} has elements in {names}, and nothing else");
    Finding::warning("element", found)
        .means("Its sandbox is gone; ports that it held may be held still.")
        .mend(mend)
}

/// DEL by the plugins that made the elements, which has to be told whose they are; `None` where their owner does
/// not tell.
fn delete(node: &Node, owner: &str, tables: &BTreeSet<&str>) -> Option<String> {
    let mut names = owner.strip_prefix("cni:")?.splitn(3, '/');
    let network: NetworkName = names.next()?.parse().ok()?;
    let container: ContainerId = names.next()?.parse().ok()?;
    let interface: InterfaceName = names.next()?.parse().ok()?;
    let sandbox = format!(
        "CNI_CONTAINERID={} CNI_IFNAME={}",
        quoted(&container),
        quoted(&interface)
    );
    let plugins: BTreeSet<_> = tables.iter().map(|table| plugin_of(table)).collect();
    let commands = plugins.into_iter().map(|plugin| {
        let path = match node.configuration.programs.get(plugin) {
            Some(Program::Found { path, .. }) => quoted(&path.display()),
            _ => format!("/opt/cni/bin/{plugin}"),
        };
        let request = json!({"cniVersion": "1.0.0", "name": network.as_str(), "type": plugin});
        format!(
            "echo {} | CNI_COMMAND=DEL {sandbox} {path}",
            quoted(&request)
        )
    });
    Some(commands.collect::<Vec<_>>().join("\n"))
}

fn plugin_of(table: &str) -> &'static str {
    match table {
        "cni-portmap" => "portmap",
        _ => "bridge",
    }
}

/// Its holder's sandbox exists, or its link does.
fn is_used(node: &Node, lease: &Lease) -> bool {
    let mut attached = node.attached.iter();
    attached.any(|it| it.is_alive && lease.is_of(&it.attachment))
        || lease.owner().is_some_and(|owner| has_link(node, &owner))
}

fn has_link(node: &Node, owner: &str) -> bool {
    node.links
        .iter()
        .any(|it| it.alias.as_deref() == Some(owner))
}

fn is_cached(node: &Node, owner: &str) -> bool {
    node.attached
        .iter()
        .any(|it| it.is_alive && it.attachment.owner() == owner)
}

fn count(number: usize, word: &str) -> String {
    match (number, word) {
        (1, word) => format!("1 {word}"),
        (number, "address") => format!("{number} addresses"),
        (number, word) => format!("{number} {word}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{attached, lease, levels, link, node};
    use super::*;

    #[test]
    fn leases_of_who_lives_are_well() {
        let mut node = node(&[]);
        node.leases = vec![
            lease("pods", "10.1.0.2", "a"),
            lease("pods", "10.1.0.3", "b"),
        ];
        node.attached = vec![attached("pods", "a")];
        let mut port = link(7, "veth7");
        port.alias = Some("cni:pods/b/eth0".to_owned());
        node.links = vec![port];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }

    #[test]
    fn leases_of_who_is_gone_are_told_by_network() {
        let list = r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
        let mut node = node(&[("pods.conflist", list)]);
        node.leases = vec![
            lease("pods", "10.1.0.2", "a"),
            lease("pods", "10.1.0.3", "b"),
            lease("old", "10.2.0.2", "c"),
        ];
        let mut gone = attached("pods", "a");
        gone.is_alive = false;
        node.attached = vec![gone];
        let [old, pods] = judge(&node).try_into().unwrap();
        let (old, pods): (Finding, Finding) = (old, pods);
        assert_eq!((old.level, pods.level), (Level::Warning, Level::Warning));
        assert_eq!(old.mend, "rm /var/lib/cni/networks/old/10.2.0.2");
        assert_eq!(pods.mend, "cnitool gc pods");
        assert!(
            pods.found.ends_with("10.1.0.2 (a), 10.1.0.3 (b)"),
            "{pods:?}"
        );
    }

    #[test]
    fn leases_that_name_nobody_are_told() {
        let mut node = node(&[]);
        node.leases = vec![lease("pods", "10.1.0.2", "a")];
        node.leases[0].holder = None;
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert_eq!(findings[0].mend, "rm /var/lib/cni/networks/pods/10.1.0.2");
    }

    #[test]
    fn elements_without_lease_and_link_are_told() {
        let element = |owner: &str| Held {
            table: "cni-portmap",
            owner: owner.to_owned(),
            port: None,
            address: None,
        };
        let mut node = node(&[]);
        node.leases = vec![lease("pods", "10.1.0.2", "a")];
        node.attached = vec![attached("pods", "a"), attached("pods", "b")];
        node.firewall.elements = ["a", "b", "c", "c"]
            .map(|it| element(&format!("cni:pods/{it}/eth0")))
            .into();
        let findings = judge(&node);
        let found = "cni:pods/c/eth0 has elements in cni-portmap, and nothing else";
        let told = findings.iter().find(|it| it.found == found).unwrap();
        let mend = "CNI_COMMAND=DEL CNI_CONTAINERID=c CNI_IFNAME=eth0 /opt/cni/bin/portmap";
        assert!(told.mend.ends_with(mend), "{told:?}");
        assert_eq!(
            findings.iter().filter(|it| it.subject == "element").count(),
            1
        );
    }

    #[test]
    fn elements_that_no_del_matches_are_told_otherwise() {
        let element = |table, owner: &str| Held {
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
            let findings = judge(&node);
            assert_eq!(levels(&findings), [Level::Warning], "{owner}");
            assert_eq!(
                findings[0].found,
                format!(
                    "elements of {owner:?}, which is no attachment, in cni-bridge, cni-portmap"
                )
            );
            assert_eq!(
                findings[0].mend,
                "nft list table bridge cni-bridge\nnft list table inet cni-portmap"
            );
        }
    }
}
