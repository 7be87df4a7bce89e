//! Resources, their devices, and the states of the devices.

use std::path::Path;

use kubelet::device_plugin::{
    Device, DeviceSpec, HEALTHY, ListAndWatchResponse, NumaNode, Topology, UNHEALTHY,
};

#[derive(Debug, Clone)]
pub(crate) struct Resource {
    /// Full name: `DOMAIN/NAME`.
    pub name: String,
    /// What a device of the resource is.
    pub kind: Kind,
}

/// What a device of a resource is: a share of bandwidth, or a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub(crate) enum Kind {
    /// A share of the uplink's capacity: its direction, and its rate in Mbit/s.
    #[display("{_0}")]
    Rate(Direction, u32),
    /// The permission to use `/dev/net/tun`.
    #[display("tun")]
    Tun,
}

/// A direction, as the pod sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// Towards the pod.
    Ingress,
    /// From the pod.
    Egress,
}

/// Number and state of the devices of a resource at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeviceState {
    /// The number of devices.
    pub count: u32,
    /// Whether the kubelet may allocate the devices.
    pub is_healthy: bool,
    /// The NUMA node of the uplink's hardware, if it has one.
    pub numa_node: Option<i64>,
}

impl Resource {
    /// Returns the resource of this kind. Its name is `DOMAIN/tun`, or contains the direction and
    /// the unit, as in `DOMAIN/egress-10mbit`. The plugin `bandwidth` reads both from the name. The
    /// scheduler counts devices of different names separately.
    pub fn new(domain: &str, kind: Kind) -> Self {
        let name = match kind {
            Kind::Rate(direction, unit) => format!("{domain}/{direction}-{unit}mbit"),
            Kind::Tun => format!("{domain}/tun"),
        };
        Self { name, kind }
    }

    /// Returns the file name of the socket on which the agent serves this resource.
    pub fn socket_name(&self) -> String {
        let name = self.name.rsplit('/').next().unwrap_or_default();
        format!("{OWN}-{name}.sock")
    }

    /// Returns the list of devices for the kubelet, with the number and the state in `state`.
    pub fn list(&self, state: DeviceState) -> ListAndWatchResponse {
        let devices = (1..=state.count).map(|number| Device {
            id: self.kind.id(number),
            health: state.health().to_owned(),
            topology: state.numa_node.map(|id| Topology {
                nodes: vec![NumaNode { id }],
            }),
        });
        ListAndWatchResponse {
            devices: devices.collect(),
        }
    }
}

impl DeviceState {
    /// Returns the state of the devices in the kubelet's words: [`HEALTHY`] or [`UNHEALTHY`].
    pub fn health(self) -> &'static str {
        if self.is_healthy { HEALTHY } else { UNHEALTHY }
    }
}

impl Kind {
    /// Returns the rate of a device, in Mbit/s; 1 for [`Self::Tun`], whose devices have no rate.
    pub fn unit(self) -> u32 {
        match self {
            Self::Rate(_, unit) => unit,
            Self::Tun => 1,
        }
    }

    /// Returns the ID of the device with this number. The ID contains the number as five digits,
    /// with leading zeros. The ID does not depend on the capacity, so the IDs in the kubelet's
    /// checkpoint stay valid when the capacity changes.
    fn id(self, number: u32) -> String {
        format!("{self}-{number:05}")
    }

    /// Returns the number in the ID of a device; `None` for an ID that [`Self::id`] does not make.
    pub fn number(self, id: &str) -> Option<u32> {
        let (_, digits) = id.rsplit_once('-')?;
        let number = digits.parse().ok()?;
        (self.id(number) == id).then_some(number)
    }

    /// Returns whether the host has the device files; `None` for a kind without device files.
    pub fn is_usable(self) -> Option<bool> {
        (self == Self::Tun).then(|| Path::new(TUN).exists())
    }

    /// Returns the device files that a container with a device gets; none for [`Self::Rate`].
    pub fn files(self) -> Vec<DeviceSpec> {
        match self {
            Self::Rate(..) => Vec::new(),
            Self::Tun => vec![DeviceSpec {
                container_path: TUN.to_owned(),
                host_path: TUN.to_owned(),
                permissions: "rw".to_owned(),
            }],
        }
    }
}

/// Prefix of all names that the agent creates in the directory of device plugins.
pub(crate) const OWN: &str = "cni-agent";

/// The device file of tun and tap links.
pub(crate) const TUN: &str = "/dev/net/tun";

#[cfg(test)]
mod tests {
    use super::{DeviceState, Direction, Kind, Resource};

    const EGRESS: Kind = Kind::Rate(Direction::Egress, 10);

    #[test]
    fn an_id_has_the_number_of_its_device() {
        let resource = Resource::new("example.org", EGRESS);
        assert_eq!(resource.name, "example.org/egress-10mbit");
        let state = DeviceState {
            count: 10_000,
            is_healthy: true,
            numa_node: None,
        };
        let list = resource.list(state).devices;
        for (device, number) in list.iter().zip(1..) {
            assert_eq!(EGRESS.number(&device.id), Some(number), "{}", device.id);
        }
        assert_eq!(list.len(), 10_000);
    }

    #[test]
    fn other_texts_are_no_ids() {
        for text in [
            "",
            "egress",
            "egress-",
            "egress-1",
            "egress-+0001",
            "ingress-00001",
            "egress-00001 ",
        ] {
            assert_eq!(EGRESS.number(text), None, "{text}");
        }
    }

    #[test]
    fn devices_have_the_numa_node_of_the_uplink() {
        let state = DeviceState {
            count: 2,
            is_healthy: false,
            numa_node: Some(1),
        };
        let list = Resource::new("example.org", EGRESS).list(state);
        let nodes = list.devices.iter().filter_map(|it| it.topology.as_ref());
        let nodes: Vec<_> = nodes.flat_map(|it| &it.nodes).map(|it| it.id).collect();
        assert_eq!(nodes, [1, 1]);
        assert!(list.devices.iter().all(|it| it.health == "Unhealthy"));
    }
}
