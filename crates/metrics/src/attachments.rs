//! Numbers of attachments.

use std::collections::BTreeMap;
use std::fmt;

use netlink::LinkKind;
use node::{Attached, Node, Traces};

use crate::family::{Family, Writer};
use crate::label::Text;

/// Numbers of live attachments by network, including configured networks without attachment.
#[derive(Debug, Default)]
pub(crate) struct Attachments(BTreeMap<Text, u64>);

impl Attachments {
    pub fn of(node: &Node, traces: &BTreeMap<String, Traces<'_>>) -> Self {
        let mut attachments = Self::default();
        for (_, network) in node.configuration.networks() {
            let name = Text::new(network.list.name.as_str());
            attachments.0.entry(name).or_default();
        }
        for (owner, traces) in traces {
            let is_cached = traces.cached.is_some_and(|it| it.is_alive);
            let has_link = traces.links.iter().any(|it| it.kind == LinkKind::Veth);
            if is_cached || has_link {
                let [network, ..] = names(owner, traces.cached);
                *attachments.0.entry(network).or_default() += 1;
            }
        }
        attachments
    }

    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let live = self.0.iter();
        writer.gauges(
            &LIVE,
            live.map(|(network, it)| ([("network", network.as_str())], *it)),
        )
    }
}

/// Returns network, container and interface of the attachment with the tag `owner`. The names in a
/// runtime's cache take precedence, because a tag has hashes in place of long names.
pub(crate) fn names(owner: &str, cached: Option<&Attached>) -> [Text; 3] {
    if let Some(Attached { attachment, .. }) = cached {
        return [
            Text::new(attachment.network.as_str()),
            Text::new(attachment.container.as_str()),
            Text::new(attachment.interface.as_str()),
        ];
    }
    let mut names = owner
        .strip_prefix("cni:")
        .unwrap_or_default()
        .splitn(3, '/');
    [(); 3].map(|()| Text::new(names.next().unwrap_or_default()))
}

const LIVE: Family = Family {
    name: "cni_attachments",
    unit: None,
    help: "Live attachments: their sandbox exists, or a link of the host is tagged with them.",
};
