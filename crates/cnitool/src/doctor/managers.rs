//! Who else looks after links that are ours.

use cni::Attachment;
use netlink::{Link, LinkKind};
use node::{Managed, Node};

use super::finding::{Finding, quoted, some_of};
use crate::drop_ins;

/// Of udev, systemd-networkd and `NetworkManager`.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    for by in ["systemd-networkd", NETWORK_MANAGER] {
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
    Finding::warning("manager", found)
        .means("It may take addresses from links, or take them down, when it starts or reloads.")
        .mend(mend(first.by, &names))
}

/// The files of the installation, and one of its own for each link that they are not for.
fn mend(by: &str, links: &[&str]) -> String {
    let (covered, others): (Vec<&str>, Vec<&str>) =
        links.iter().partition(|it| drop_ins::cover(it));
    let mut commands = Vec::new();
    if !covered.is_empty() {
        commands.push("UPDATE_CNI_BINARIES=false cnitool install --drop-ins".to_owned());
    }
    commands.extend(others.into_iter().map(|link| {
        let (file, text) = drop_in(by, link);
        let words: Vec<_> = text.lines().map(quoted).collect();
        format!("printf '%s\\n' {} > {}", words.join(" "), quoted(&file))
    }));
    let reload = match by {
        NETWORK_MANAGER => "nmcli general reload",
        _ => "networkctl reload",
    };
    commands.push(reload.to_owned());
    commands.join("\n")
}

/// The file by which a manager leaves a link alone, and what is in it.
fn drop_in(by: &str, link: &str) -> (String, String) {
    match by {
        NETWORK_MANAGER => (
            format!("/etc/NetworkManager/conf.d/05-cni-{link}.conf"),
            format!("[device-cni-{link}]\nmatch-device=interface-name:{link}\nmanaged=0"),
        ),
        _ => (
            format!("/etc/systemd/network/05-cni-{link}.network"),
            format!("[Match]\nName={link}\n[Link]\nUnmanaged=yes"),
        ),
    }
}

/// It is a bridge of a network, or bears the tag of an attachment.
fn is_ours(node: &Node, name: &str) -> bool {
    let is_tagged = |it: &Link| it.alias.as_deref().is_some_and(Attachment::is_owner);
    let is_of_kind = |it: &Link| matches!(it.kind, LinkKind::Veth | LinkKind::Ifb);
    let link = node.link_called(name);
    node.configuration.bridges().contains(name)
        || link.is_some_and(|it| is_tagged(it) && is_of_kind(it))
}

const NETWORK_MANAGER: &str = "NetworkManager";

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
        let install = "UPDATE_CNI_BINARIES=false cnitool install --drop-ins";
        let mends = [&findings[0].mend, &findings[1].mend];
        let reloads = ["networkctl reload", "nmcli general reload"];
        assert_eq!(
            mends,
            reloads.map(|it| format!("{install}\n{it}")).each_ref()
        );
    }

    #[test]
    fn links_that_the_installation_has_no_file_for_get_one() {
        assert_eq!(
            mend("systemd-networkd", &["pods0"]),
            "printf '%s\\n' '[Match]' Name=pods0 '[Link]' Unmanaged=yes > \
             /etc/systemd/network/05-cni-pods0.network\nnetworkctl reload"
        );
        assert_eq!(
            mend("NetworkManager", &["cni0", "pods0"]),
            "UPDATE_CNI_BINARIES=false cnitool install --drop-ins\n\
             printf '%s\\n' '[device-cni-pods0]' match-device=interface-name:pods0 managed=0 > \
             /etc/NetworkManager/conf.d/05-cni-pods0.conf\nnmcli general reload"
        );
    }
}
