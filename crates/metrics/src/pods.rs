//! Traffic and limits of pods, by the counters of their host links and of the qdiscs at both ends of
//! the veth pair.
//!
//! Directions are the pod's: ingress is what the pod receives. So ingress is what the host link
//! sends, and its limit is the qdisc of the host link. Egress is what the host link receives, and
//! its limit is the qdisc of the container's end. Bytes and packets are the host link's, because a
//! pod can reset its own counters.

use std::collections::BTreeMap;

use netlink::{Counters, Link, LinkKind, QueueCounters};
use node::{Node, Traces, owner_of};

use crate::family::{Family, Labels, Metric};
use crate::label::Text;

/// The usual maximum number of pods that have metrics of their own.
pub const MOST_PODS: usize = 1000;

/// Counters and limit of one direction of a pod's traffic.
#[derive(Debug, Clone, Copy)]
struct Direction {
    counters: Counters,
    limit: Option<(u64, QueueCounters)>,
}

/// Returns the traffic and the limits of at most `most` pods, the first in the order of network and
/// container, the number of these pods, and the number of the other pods.
pub(crate) fn count(
    node: &Node,
    traces: &BTreeMap<String, Traces<'_>>,
    most: usize,
) -> Vec<Metric> {
    let (mut pods, mut left_out) = (BTreeMap::new(), 0);
    let links: BTreeMap<_, _> = node.links.iter().map(|it| (&*it.name, it)).collect();
    for (owner, traces) in traces {
        let Some(directions) = directions(node, owner, traces, &links) else {
            continue;
        };
        if pods.len() < most {
            pods.insert(names(owner, traces), directions);
        } else {
            left_out += 1;
        }
    }
    let directions = pods.iter().flat_map(|(names, directions)| {
        let directions = ["ingress", "egress"].into_iter().zip(directions);
        directions.map(|(direction, it)| (labels(names, direction), it))
    });
    let directions: Vec<_> = directions.collect();
    let metrics = FAMILIES.into_iter().map(|(family, value)| {
        let samples = directions.iter();
        family.with(samples.filter_map(|(labels, it)| Some((labels.clone(), value(it)?))))
    });
    let numbers = [WITH_METRICS.value(pods.len()), LEFT_OUT.value(left_out)];
    metrics.chain(numbers).collect()
}

/// Returns the values of five labels, each empty if unknown: network, container, interface,
/// Kubernetes namespace and pod. The first three identify the attachment. They come from a
/// runtime's cache, or else from `owner`, the tag of the attachment's links and elements. The last
/// two come from the cached `CNI_ARGS`.
fn names(owner: &str, traces: &Traces<'_>) -> [Text; 5] {
    let [network, container, interface] = traces.names(owner);
    let arguments = traces.cached.map(|it| &it.entry.arguments);
    let argument = |name| {
        arguments
            .and_then(|it| it.cni_value(name))
            .unwrap_or_default()
    };
    let [namespace, pod] = ["K8S_POD_NAMESPACE", "K8S_POD_NAME"].map(argument);
    [network, container, interface, namespace, pod].map(Text::from)
}

fn labels([network, container, interface, namespace, pod]: &[Text; 5], direction: &str) -> Labels {
    let direction = direction.into();
    let labels = [
        ("namespace", namespace),
        ("pod", pod),
        ("container", container),
        ("network", network),
        ("interface", interface),
        ("direction", &direction),
    ];
    labels.map(|(name, value)| (name, value.clone())).into()
}

/// Returns the ingress and the egress of an attachment; `None` if it has no host link, or if the
/// link has no counters. Finds the host link by the attachment's tag. Go plugins do not tag links,
/// so this function finds their host link by its name in the cached result of ADD.
fn directions(
    node: &Node,
    owner: &str,
    traces: &Traces<'_>,
    links: &BTreeMap<&str, &Link>,
) -> Option<[Direction; 2]> {
    let is_veth = |it: &&&Link| it.kind == LinkKind::Veth;
    let tagged = traces.links.iter().find(is_veth).copied();
    let untagged = || {
        let cached = traces.cached.filter(|it| it.is_alive)?;
        let reported = cached.entry.host_links().into_iter();
        let mut reported = reported.filter_map(|it| links.get(it.as_str()).copied());
        reported.find(|it| it.kind == LinkKind::Veth && owner_of(it).is_none())
    };
    let host_link = tagged.or_else(untagged)?;
    let counters = node.counters.get(&host_link.index)?;
    let limit = |it: &node::CountedLimit| (it.rate, it.counters);
    let ingress = Direction {
        counters: counters.sent,
        limit: node.limits.get(&host_link.index).map(limit),
    };
    let egress = Direction {
        counters: counters.received,
        limit: node.egress_limits.get(owner).map(limit),
    };
    Some([ingress, egress])
}

/// Function that returns one metric of a direction; `None` for a metric of the limit if the
/// direction has no limit.
type Value = fn(&Direction) -> Option<u64>;

const FAMILIES: [(Family, Value); 7] = [
    (BYTES, |it| Some(it.counters.bytes)),
    (PACKETS, |it| Some(it.counters.packets)),
    (DROPPED, |it| Some(it.counters.dropped)),
    (LIMIT_DROPPED, |it| Some(it.limit?.1.dropped.into())),
    (OVERLIMITS, |it| Some(it.limit?.1.overlimits.into())),
    (LIMIT, |it| Some(it.limit?.0)),
    (BACKLOG, |it| Some(it.limit?.1.backlog.into())),
];

const BYTES: Family = Family::counters(
    "cni_pod",
    "Bytes with Ethernet headers that the pod received or sent, behind its limits.",
)
.in_unit("bytes");

const PACKETS: Family = Family::counters(
    "cni_pod_packets",
    "Packets that the pod received or sent, behind its limits.",
);

const DROPPED: Family = Family::counters(
    "cni_pod_dropped_packets",
    "Packets that the host's end of the veth pair dropped, without those that the limit did.",
);

const LIMIT_DROPPED: Family = Family::counters(
    "cni_pod_limit_dropped_packets",
    "Packets that the pod's rate limit dropped because too many were waiting. Wraps at 2^32.",
);

const OVERLIMITS: Family = Family::counters(
    "cni_pod_limit_overlimits",
    "Times at which packets had to wait for the pod's rate limit. Wraps at 2^32.",
);

const LIMIT: Family =
    Family::gauges("cni_pod_limit", "Rate limit of the pod.").in_unit("bytes_per_second");

const BACKLOG: Family = Family::gauges(
    "cni_pod_limit_backlog",
    "Bytes that wait for the pod's rate limit.",
)
.in_unit("bytes");

const WITH_METRICS: Family = Family::gauges(
    "cni_pods_included",
    "Attachments that have metrics of their own.",
);

const LEFT_OUT: Family = Family::gauges(
    "cni_pods_left_out",
    "Attachments without metrics of their own, because there are too many.",
);

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
        let numbers = |most| {
            let metrics = count(&node, &node.traces(), most);
            let [.., included, left_out] = metrics.as_slice() else {
                return None;
            };
            Some([included, left_out].map(|it| it.samples[0].1))
        };
        assert_eq!(numbers(2), Some([2, 1]));
        assert_eq!(numbers(MOST_PODS), Some([3, 0]));
    }
}
