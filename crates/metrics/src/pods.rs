//! Traffic and limits of pods, by the counters of their host links and ifb devices.
//!
//! Directions are the pod's: ingress is what the pod receives. So ingress is what the host link
//! sends, and its limit is the qdisc of the host link. Egress is what the host link receives, and
//! its limit is the qdisc of the ifb, to which these packets are redirected.

use std::collections::BTreeMap;
use std::fmt;

use netlink::{Counters, Link, LinkKind, QueueCounters};
use node::{Attached, Node, Traces};

use crate::attachments::names;
use crate::family::{Family, Writer, number};
use crate::label::Text;

/// Which pods have metrics of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pods {
    /// No pod.
    None,
    /// At most this many, in the order of their networks and containers.
    AtMost(usize),
}

/// Traffic of all pods.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pods: BTreeMap<Labels, [Direction; 2]>,
    /// Number of pods beyond the limit of [`Pods::AtMost`].
    left_out: u64,
}

/// Names of an attachment and its pod. The first three fields identify the attachment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    network: Text,
    container: Text,
    interface: Text,
    namespace: Text,
    pod: Text,
}

/// One direction of a pod's traffic.
#[derive(Debug, Clone, Copy)]
struct Direction {
    counters: Counters,
    limit: Option<(u64, QueueCounters)>,
}

impl Default for Pods {
    fn default() -> Self {
        Self::AtMost(1000)
    }
}

impl Traffic {
    pub fn of(node: &Node, traces: &BTreeMap<String, Traces<'_>>, pods: Pods) -> Option<Self> {
        let Pods::AtMost(most) = pods else {
            return None;
        };
        let mut traffic = Self::default();
        let links: BTreeMap<_, _> = node.links.iter().map(|it| (&*it.name, it)).collect();
        for (owner, traces) in traces {
            let Some(directions) = directions(node, traces, &links) else {
                continue;
            };
            if traffic.pods.len() < most {
                traffic.pods.insert(Labels::of(owner, traces), directions);
            } else {
                traffic.left_out += 1;
            }
        }
        Some(traffic)
    }

    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        for (family, value) in COUNTERS {
            writer.counters(family, self.samples(value))?;
        }
        for (family, value) in GAUGES {
            writer.gauges(family, self.samples(value))?;
        }
        writer.gauge(&WITH_METRICS, number(self.pods.len()))?;
        writer.gauge(&LEFT_OUT, self.left_out)
    }

    fn samples(&self, value: Value) -> impl Iterator<Item = ([(&'static str, &str); 6], u64)> {
        self.pods.iter().flat_map(move |(labels, directions)| {
            let names = ["ingress", "egress"].into_iter().zip(directions);
            names.filter_map(move |(name, it)| Some((labels.with(name), value(it)?)))
        })
    }
}

impl Labels {
    fn of(owner: &str, traces: &Traces<'_>) -> Self {
        let [network, container, interface] = names(owner, traces.cached);
        let argument = |name| Text::new(traces.cached.map_or("", |it| argument(it, name)));
        Self {
            network,
            container,
            interface,
            namespace: argument("K8S_POD_NAMESPACE"),
            pod: argument("K8S_POD_NAME"),
        }
    }

    fn with(&self, direction: &'static str) -> [(&'static str, &str); 6] {
        [
            ("namespace", self.namespace.as_str()),
            ("pod", self.pod.as_str()),
            ("container", self.container.as_str()),
            ("network", self.network.as_str()),
            ("interface", self.interface.as_str()),
            ("direction", direction),
        ]
    }
}

/// Returns the value of a Kubernetes argument in `CNI_ARGS`; empty if it is absent.
fn argument<'a>(attached: &'a Attached, name: &str) -> &'a str {
    let mut pairs = attached.entry.arguments.cni.iter();
    let value = pairs.find_map(|[key, value]| (key == name).then_some(value));
    value.map_or("", String::as_str)
}

/// Returns the ingress and the egress of an attachment; `None` if it has no host link. Finds a host
/// link by its tag. A link that the reference made has no tag, so the result of its ADD has to name
/// it.
fn directions(
    node: &Node,
    traces: &Traces<'_>,
    links: &BTreeMap<&str, &Link>,
) -> Option<[Direction; 2]> {
    let tagged = |kind| traces.links.iter().find(|it| it.kind == kind).copied();
    let untagged = || {
        let cached = traces.cached.filter(|it| it.is_alive)?;
        let reported = cached.host_links().into_iter();
        let mut reported = reported.filter_map(|it| links.get(it.as_str()).copied());
        reported.find(|it| it.kind == LinkKind::Veth && it.alias.is_none())
    };
    let host_link = tagged(LinkKind::Veth).or_else(untagged)?;
    let counters = node.counters.get(&host_link.index)?;
    let limit = |link: &Link| {
        let limit = node.limits.get(&link.index);
        limit.map(|it| (it.rate, it.counters))
    };
    let ingress = Direction {
        counters: counters.sent,
        limit: limit(host_link),
    };
    let egress = Direction {
        counters: counters.received,
        limit: tagged(LinkKind::Ifb).and_then(limit),
    };
    Some([ingress, egress])
}

/// Function that returns a number of one direction. It returns `None` if the number is about a
/// limit and the direction has no limit.
type Value = fn(&Direction) -> Option<u64>;

const COUNTERS: [(&Family, Value); 5] = [
    (&BYTES, |it| Some(it.counters.bytes)),
    (&PACKETS, |it| Some(it.counters.packets)),
    (&DROPPED, |it| Some(it.counters.dropped)),
    (&LIMIT_DROPPED, |it| Some(it.limit?.1.dropped.into())),
    (&OVERLIMITS, |it| Some(it.limit?.1.overlimits.into())),
];

const GAUGES: [(&Family, Value); 2] = [
    (&LIMIT, |it| Some(it.limit?.0)),
    (&BACKLOG, |it| Some(it.limit?.1.backlog.into())),
];

const BYTES: Family = Family {
    name: "cni_pod",
    unit: Some("bytes"),
    help: "Bytes with Ethernet headers that the pod received (after its limit) or sent (before it).",
};

const PACKETS: Family = Family {
    name: "cni_pod_packets",
    unit: None,
    help: "Packets that the pod received (after its limit) or sent (before it).",
};

const DROPPED: Family = Family {
    name: "cni_pod_dropped_packets",
    unit: None,
    help: "Packets that the host's end of the veth pair dropped, without those that the limit did.",
};

const LIMIT_DROPPED: Family = Family {
    name: "cni_pod_limit_dropped_packets",
    unit: None,
    help: "Packets that the pod's rate limit dropped because too many were waiting. Wraps at 2^32.",
};

const OVERLIMITS: Family = Family {
    name: "cni_pod_limit_overlimits",
    unit: None,
    help: "Times at which packets had to wait for the pod's rate limit. Wraps at 2^32.",
};

const LIMIT: Family = Family {
    name: "cni_pod_limit",
    unit: Some("bytes_per_second"),
    help: "Rate limit of the pod.",
};

const BACKLOG: Family = Family {
    name: "cni_pod_limit_backlog",
    unit: Some("bytes"),
    help: "Bytes that wait for the pod's rate limit.",
};

const WITH_METRICS: Family = Family {
    name: "cni_pods_included",
    unit: None,
    help: "Attachments that have metrics of their own.",
};

const LEFT_OUT: Family = Family {
    name: "cni_pods_left_out",
    unit: None,
    help: "Attachments without metrics of their own, because there are too many.",
};

#[cfg(test)]
mod tests {
    use netlink::LinkCounters;

    use super::*;

    #[test]
    fn pods_beyond_the_limit_are_counted() {
        let mut node = Node::default();
        for index in 1..4 {
            node.links.push(Link {
                index,
                kind: LinkKind::Veth,
                alias: Some(format!("cni:pods/c{index}/eth0")),
                ..Link::default()
            });
            let counters = LinkCounters {
                link: index,
                ..LinkCounters::default()
            };
            node.counters.insert(index, counters);
        }
        let count = |pods| {
            let traffic = Traffic::of(&node, &node.traces(), pods)?;
            Some((traffic.pods.len(), traffic.left_out))
        };
        assert_eq!(count(Pods::AtMost(2)), Some((2, 1)));
        assert_eq!(count(Pods::default()), Some((3, 0)));
        assert_eq!(count(Pods::None), None);
    }
}
