//! Who else looks after links that are ours.

use netlink::{Link, LinkKind};

use super::finding::{Finding, some_of};
use crate::node::{Managed, Node};

/// Of udev, systemd-networkd and `NetworkManager`.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    for by in ["systemd-networkd", "NetworkManager"] {
        let managed = node.managers.managed.iter().filter(|it| it.by == by);
        let managed: Vec<_> = managed.filter(|it| is_ours(node, &it.link)).collect();
        if let [first, ..] = managed.as_slice() {
            findings.push(finding(first, &managed));
        }
    }
    if let Some(file) = &node.managers.mac_policy {
        let found = format!("udev changes MACs, by {}", file.display());
        let means = "Links of ours are left alone: each is made with a MAC that was asked for.";
        findings.push(Finding::ok("udev", found).means(means));
    }
    findings
}

fn finding(first: &Managed, managed: &[&Managed]) -> Finding {
    let names: Vec<_> = managed.iter().map(|it| it.link.as_str()).collect();
    let by_file = first
        .file
        .as_ref()
        .map_or_else(String::new, |it| format!(", by {it}"));
    let found = format!("{} manages {}{by_file}", first.by, some_of(&names));
    let finding = Finding::warning("manager", found)
        .means("It may take addresses from links, or take them down, when it starts or reloads.");
    match first.by {
        "NetworkManager" => finding.mend(
            "printf '[keyfile]\\nunmanaged-devices=interface-name:cni*,interface-name:veth*,\
             interface-name:bwp*\\n' > /etc/NetworkManager/conf.d/cni.conf\nnmcli general reload",
        ),
        _ => finding.mend(
            "printf '[Match]\\nName=cni* veth* bwp*\\n[Link]\\nUnmanaged=yes\\n' \
             > /etc/systemd/network/05-cni.network\nnetworkctl reload",
        ),
    }
}

/// It is a bridge of a network, or bears the tag of an attachment.
fn is_ours(node: &Node, name: &str) -> bool {
    let is_tagged = |it: &Link| it.alias.as_deref().is_some_and(|it| it.starts_with("cni:"));
    let is_of_kind = |it: &Link| matches!(it.kind, LinkKind::Veth | LinkKind::Ifb);
    let link = node.link_called(name);
    node.configuration.bridges().contains(name)
        || link.is_some_and(|it| is_tagged(it) && is_of_kind(it))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{levels, link, node};
    use super::*;

    #[test]
    fn links_of_ours_that_others_manage_are_told_and_no_others() {
        let list = r#"{"name": "pods", "plugins": [{"type": "bridge"}]}"#;
        let mut node = node(&[("pods.conflist", list)]);
        let mut port = link(3, "veth1");
        port.kind = LinkKind::Veth;
        port.alias = Some("cni:pods/a/eth0".to_owned());
        node.links = vec![link(1, "eth0"), link(2, "cni0"), port];
        let managed = |link: &str, by| Managed {
            link: link.to_owned(),
            by,
            file: None,
        };
        node.managers.managed = vec![managed("eth0", "systemd-networkd")];
        assert_eq!(judge(&node), []);
        for link in ["cni0", "veth1"] {
            node.managers
                .managed
                .push(managed(link, "systemd-networkd"));
        }
        node.managers
            .managed
            .push(managed("cni0", "NetworkManager"));
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning, Level::Warning]);
        assert_eq!(findings[0].found, "systemd-networkd manages cni0, veth1");
        assert!(findings[1].mend.ends_with("nmcli general reload"));
    }
}
