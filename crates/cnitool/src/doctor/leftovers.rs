//! Check for attachments with links that nothing seems to use, as CRI-O leaves them after an
//! interrupted ADD.

use node::Node;
use upkeep::Leftover;

use super::finding::{Finding, count, some_of};

/// Reports the attachments that have a link, but no cached result and no process in their network
/// namespaces. Reports none if this process does not see the processes of a container runtime.
pub fn judge(node: &Node) -> Vec<Finding> {
    let idle = Leftover::all(node).into_iter().filter(|it| it.is_idle);
    let idle: Vec<_> = idle.collect();
    if idle.is_empty() {
        return Vec::new();
    }
    let links = some_of(
        idle.iter()
            .map(|it| format!("{} of {}", it.link, it.attachment.owner())),
    );
    let number = count(idle.len(), "link");
    let message = format!("{number} with neither a process nor a cached result: {links}");
    let impact = "An ADD may be running. If this lasts for more than ten minutes, and `crictl pods` does \
         not list the pod, the ADD was interrupted: its address stays leased. cni-agent with the section \
         `gc` removes it. With `cniVersion` 1.1.0, CRI-O calls GC at its start, which removes it, too.";
    vec![Finding::warning(message).impact(impact)]
}

#[cfg(test)]
mod tests {
    use attach::host_link_name;
    use netlink::LinkKind;
    use node::HostLink;

    use super::super::finding::Level;
    use super::super::tests::{attached, levels, link, node};
    use super::*;

    /// Returns a node with the link of a pod, whose namespace has the number 4.
    fn with_link() -> Node {
        let mut node = node(&[]);
        let attachment = attached("pods", "a").attachment;
        let (name, owner) = (host_link_name(&attachment), attachment.owner());
        let mut end = link(7, &name);
        (end.kind, end.peer_namespace) = (LinkKind::Veth, Some(4));
        end.alias = Some(owner.clone());
        node.links = vec![end.clone()];
        node.host_links.0 = vec![HostLink {
            link: end,
            owner: Some(owner),
            addresses: Some([].into()),
        }];
        node.occupied = Some([1, 2].into());
        node
    }

    #[test]
    fn links_of_idle_namespaces_are_reported() {
        let mut node = with_link();
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert!(
            findings[0].message.ends_with(" of cni:pods/a/eth0"),
            "{findings:?}"
        );
        node.occupied = Some([4].into());
        assert_eq!(judge(&node), []);
        node.occupied = None;
        assert_eq!(judge(&node), []);
    }

    #[test]
    fn links_that_something_may_use_are_not_reported() {
        let mut node = with_link();
        node.host_links.0[0].link.peer_namespace = None;
        assert_eq!(judge(&node), [], "a link between two places of the host");
        node = with_link();
        node.attached = vec![attached("other", "a")];
        node.attached[0].is_alive = false;
        assert_eq!(judge(&node), [], "a cached result of the container");
        node = with_link();
        node.invalid_entries = 1;
        assert_eq!(judge(&node), [], "a cached result that cannot be read");
    }
}
