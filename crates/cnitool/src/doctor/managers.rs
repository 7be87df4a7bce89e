//! Checks network managers that may change links of this suite.

use netlink::LinkKind;
use node::{Managed, Node, owner_of};

use super::finding::{Finding, quoted, some_of};
use crate::drop_ins;

/// Reports links of this suite that systemd-networkd or `NetworkManager` manages. Such a manager
/// may take addresses from the links, or take the links down.
pub fn judge(node: &Node) -> Vec<Finding> {
    let programs = ["systemd-networkd", NETWORK_MANAGER].into_iter();
    let findings = programs.filter_map(|by| {
        let managed = node.managers.managed.iter().filter(|it| it.by == by);
        let managed: Vec<_> = managed.filter(|it| is_ours(node, &it.link)).collect();
        Some(finding(managed.first()?, &managed))
    });
    findings.collect()
}

fn finding(first: &Managed, managed: &[&Managed]) -> Finding {
    let names: Vec<_> = managed.iter().map(|it| it.link.as_str()).collect();
    let file = first.file.as_ref().map(|it| format!(", by {it}"));
    let (links, file) = (some_of(&names), file.unwrap_or_default());
    let message = format!("{} manages {links}{file}", first.by);
    Finding::warning(message)
        .impact("It may take addresses from links, or take them down, when it starts or reloads.")
        .fix(fix(first.by, &names))
}

/// Returns the commands that make the network manager `by` ignore `links`. They install the
/// drop-ins of this suite, and write one more file for each link whose name the drop-ins do not
/// match.
fn fix(by: &str, links: &[&str]) -> String {
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
    let program = match by {
        NETWORK_MANAGER => "nmcli general",
        _ => "networkctl",
    };
    commands.push(format!("{program} reload"));
    commands.join("\n")
}

/// Returns the path and content of a file that makes the network manager `by` ignore the link.
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

/// Returns whether the link belongs to this suite: it is the bridge of a network, or a veth link
/// whose alias is the tag of an attachment.
fn is_ours(node: &Node, name: &str) -> bool {
    let link = node.link_called(name);
    node.configuration.bridges().contains(name)
        || link.is_some_and(|it| owner_of(it).is_some() && it.kind == LinkKind::Veth)
}

const NETWORK_MANAGER: &str = "NetworkManager";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{levels, link, node};
    use super::*;

    #[test]
    fn only_own_links_that_others_manage_are_reported() {
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
        assert_eq!(findings[0].message, "systemd-networkd manages cni0, veth1");
        let install = "UPDATE_CNI_BINARIES=false cnitool install --drop-ins";
        let fixes = [&findings[0].fix, &findings[1].fix];
        let reloads = ["networkctl reload", "nmcli general reload"];
        assert_eq!(
            fixes,
            reloads.map(|it| format!("{install}\n{it}")).each_ref()
        );
    }

    #[test]
    fn links_that_the_installation_has_no_file_for_get_one() {
        assert_eq!(
            fix("systemd-networkd", &["pods0"]),
            "printf '%s\\n' '[Match]' Name=pods0 '[Link]' Unmanaged=yes > \
             /etc/systemd/network/05-cni-pods0.network\nnetworkctl reload"
        );
        assert_eq!(
            fix("NetworkManager", &["cni0", "pods0"]),
            "UPDATE_CNI_BINARIES=false cnitool install --drop-ins\n\
             printf '%s\\n' '[device-cni-pods0]' match-device=interface-name:pods0 managed=0 > \
             /etc/NetworkManager/conf.d/05-cni-pods0.conf\nnmcli general reload"
        );
    }
}
