//! Check for things of the host, such as network cards, that attachments took and that have not come
//! back.

use node::Node;

use super::finding::Finding;

/// Reports what the plugins report.
pub fn judge(node: &Node) -> Vec<Finding> {
    let unreturned = node.unreturned.iter();
    let impact = "The host, and pods that need it, cannot use it. DEL of the attachment, or \
                  `cnitool gc NETWORK`, tries again to restore it.";
    unreturned
        .map(|it| Finding::warning(it.clone()).impact(impact))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{levels, node};
    use super::*;

    #[test]
    fn each_is_a_warning() {
        let mut node = node(&[]);
        assert_eq!(judge(&node), []);
        node.unreturned = vec!["ens5 is missing".into()];
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
    }
}
