//! CHECK compares an attachment with the configuration; STATUS reports whether an ADD can succeed.

use std::fs;
use std::path::Path;

use cni::files::identity;
use cni::keys::KNOWN_ARGS;
use cni::result::Interface;
use cni::{AddResult, CheckRequest, Error, StatusRequest, Verb};
use netlink::{Connection, IpVersion, Link, LinkKind};
use netns::Netns;

use crate::addressing::need_ipv6;
use crate::del::forward;
use crate::desired::mac_of;
use crate::sandbox::Sandbox;
use crate::{
    Addressing, ContainerLink, Desired, Differences, Gateway, HostSide, Topology, guard, names,
    routed,
};

/// Calls CHECK of the IPAM plugin first, then compares links, addresses, routes, sysctls and
/// `nf_tables` elements with the desired state.
///
/// Some changes after ADD are legitimate, so CHECK does not report them. Later plugins of the chain
/// may change MTUs, add addresses for other interfaces, remove routes from the result and move
/// routes to other tables. An operator may lower the MTU of a network while containers run.
///
/// # Errors
/// - Codes 2, 4 and 7: the configuration or an argument is invalid, or `prevResult` is missing.
/// - Code 100: the attachment differs from the configuration. One error names all differences.
/// - The error of the IPAM plugin, with its code.
pub(crate) fn check<T: Topology>(request: &CheckRequest) -> anyhow::Result<()> {
    request.args()?.expect_only(KNOWN_ARGS)?;
    let topology = T::parse(&request.network)?;
    let expected = request.chained()?;
    cni::step("ask the IPAM plugin");
    forward(&request.network, Verb::Check)?;
    cni::step("compare");
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let mut check = Check {
        reported: expected.in_sandbox(&request.attachment.interface),
        found: Differences::default(),
        request,
        topology,
        expected,
        host: Connection::open()?,
        namespace: &namespace,
        sandbox: Sandbox::open(&namespace, &request.attachment.interface)?,
    };
    check.differences()?;
    check.found.report(&request.attachment)
}

struct Check<'a, T> {
    /// The container's interface, as `prevResult` reports it, with its index in `interfaces`.
    reported: Option<(usize, &'a Interface)>,
    found: Differences,
    request: &'a CheckRequest,
    topology: T,
    expected: &'a AddResult,
    host: Connection,
    namespace: &'a Netns,
    sandbox: Sandbox<'a>,
}

impl<T: Topology> Check<'_, T> {
    fn differences(&mut self) -> anyhow::Result<()> {
        let side = self.topology.find_host_side(&self.host, &mut self.found)?;
        let container = self.sandbox.find_link()?;
        self.found.unless(container.is_some(), || {
            format!(
                "{} in the sandbox is gone",
                self.request.attachment.interface
            )
        });
        let (Some(side), Some(container)) = (side, &container) else {
            return Ok(());
        };
        let desired = self.desired(side)?;
        if let Some(bridge) = &desired.side.bridge {
            self.found
                .compare_mac(bridge, on_host(self.expected, &bridge.name));
        }
        self.compare_container(container, &desired)?;
        let port = self.compare_port(container, &desired)?;
        self.compare_gateways(port.as_ref(), &desired)?;
        self.compare_forwarding(&desired)
    }

    /// Returns the desired state. The addresses and routes come from `prevResult`.
    fn desired(&self, side: HostSide) -> anyhow::Result<Desired> {
        let mut desired = self.topology.desired(side, Addressing::default());
        if desired.container.link == ContainerLink::Addressed {
            let (gateway, place) = (self.topology.gateway(), self.reported.map(|it| it.0));
            desired.container.addressing = Addressing::reported(gateway, self.expected, place)?;
        }
        Ok(desired)
    }

    fn compare_container(&mut self, link: &Link, desired: &Desired) -> anyhow::Result<()> {
        let (found, name) = (&mut self.found, &link.name);
        found.unless(link.kind == LinkKind::Veth, || {
            format!("{name} in the sandbox is no veth link")
        });
        let is_down = desired.container.link == ContainerLink::Down;
        found.unless(link.is_up != is_down, || {
            let state = if is_down { "up" } else { "down" };
            format!("{name} in the sandbox is {state}")
        });
        let reported = self.reported.map(|it| it.1);
        found.compare_mac(link, reported);
        found.extend(other_sandbox(&self.request.netns, reported));
        let addressing = &desired.container.addressing;
        found.extend(self.sandbox.differences(link, addressing)?);
        Ok(())
    }

    /// Compares the host's end of the veth pair with `desired` and `prevResult`: its state, master,
    /// port flags, VLANs, MAC, alias and `nf_tables` elements. Adds the differences to `Self::found`.
    /// Returns the host's end, or `None` if it is not on this host.
    ///
    /// The function finds the host's end as the peer of `container`, because the Go plugins give
    /// the host's end a random name. So CHECK also accepts an attachment that the Go plugins made.
    /// For such an attachment, the function does not compare the alias and the elements.
    fn compare_port(
        &mut self,
        container: &Link,
        desired: &Desired,
    ) -> anyhow::Result<Option<Link>> {
        let found = &mut self.found;
        let Some(port) = self.host.other_end(container, self.namespace)? else {
            let name = &container.name;
            found.add(format!("the other end of {name} is not on this host"));
            return Ok(None);
        };
        let name = &port.name;
        found.unless(port.is_up, || format!("{name} on the host is down"));
        if let Some(bridge) = &desired.side.bridge {
            found.unless(port.master == Some(bridge.index), || {
                format!("{name} is no port of {}", bridge.name)
            });
            desired.port.compare(&self.host, &port, found)?;
        }
        found.compare_mac(&port, on_host(self.expected, name));
        if !names::is_host_end(&port, &self.request.attachment) {
            // A Go plugin made this attachment, with rules in `nf_tables` or iptables that differ
            // from those of this suite. Only CHECK of the Go plugin compares them.
            return Ok(Some(port));
        }
        let owner = self.request.attachment.owner();
        found.unless(port.alias.as_ref() == Some(&owner), || {
            format!("the alias of {name} is not {owner}")
        });
        let protections = desired.protections(name, mac_of(container)?, &owner)?;
        found.extend(guard::differences(&protections, name)?);
        Ok(Some(port))
    }

    /// Compares the link that has the gateway addresses with `desired`: its state and its
    /// addresses. Adds the differences to `Self::found`. This link is the bridge or its VLAN link.
    /// Without a bridge, it is `port`, the host's end of the veth pair, and the function also
    /// compares the host's routes to the container.
    fn compare_gateways(&mut self, port: Option<&Link>, desired: &Desired) -> anyhow::Result<()> {
        let (found, addressing) = (&mut self.found, &desired.container.addressing);
        let gateways = &addressing.gateways;
        let link = desired.side.gateway_link().or(port);
        let Some(link) = link.filter(|_| !gateways.is_empty()) else {
            return Ok(());
        };
        found.unless(link.is_up, || format!("{} on the host is down", link.name));
        let addresses = self.host.addresses(link.index)?;
        for gateway in gateways {
            let is_there = addresses.iter().any(|it| it.address == *gateway);
            found.unless(is_there, || {
                format!("{} lacks address {gateway}", link.name)
            });
        }
        found.extend(routed::differences(&self.host, link, addressing)?);
        Ok(())
    }

    fn compare_forwarding(&mut self, desired: &Desired) -> anyhow::Result<()> {
        if self.topology.gateway() == Gateway::None {
            return Ok(());
        }
        let ips = &desired.container.addressing.ips;
        let has_ipv4 = ips.iter().any(|ip| ip.address.is_ipv4());
        let v4 = (has_ipv4, IpVersion::V4, "net.ipv4.ip_forward");
        let v6 = (
            need_ipv6(ips),
            IpVersion::V6,
            "net.ipv6.conf.all.forwarding",
        );
        for (is_needed, version, sysctl) in [v4, v6] {
            self.found
                .unless(!is_needed || self.host.forwards(version)?, || {
                    format!("sysctl {sysctl} is 0, not 1")
                });
        }
        Ok(())
    }
}

/// Compares the link in the sandbox: with `compare`, which also gets the interface in `expected`, the
/// `prevResult`; and its addresses and routes with `expected`.
///
/// # Errors
/// The sandbox cannot be read, or the attachment differs. One error names all differences.
pub fn compare_link(
    request: &CheckRequest,
    expected: &AddResult,
    compare: impl FnOnce(&Link, Option<&Interface>, &Connection, &mut Differences) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let interface = &request.attachment.interface;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let sandbox = Sandbox::open(&namespace, interface)?;
    let mut found = Differences::default();
    let reported = expected.in_sandbox(interface);
    found.extend(other_sandbox(&request.netns, reported.map(|it| it.1)));
    match sandbox.find_link()? {
        None => found.add(format!("{interface} in the sandbox is gone")),
        Some(link) => {
            let interface = reported.map(|it| it.1);
            compare(&link, interface, sandbox.connection(), &mut found)?;
            let place = reported.map(|it| it.0);
            let addressing = Addressing::reported(Gateway::None, expected, place)?;
            found.extend(sandbox.differences(&link, &addressing)?);
        }
    }
    found.report(&request.attachment)
}

/// Returns a message if the sandbox of `reported`, the interface in `prevResult`, is not `asked`, the
/// one in `CNI_NETNS`. Returns `None` if they are the same, or if `prevResult` names no sandbox.
fn other_sandbox(asked: &Path, reported: Option<&Interface>) -> Option<String> {
    let reported = reported?.sandbox.as_ref()?;
    let inode = || identity(fs::metadata(asked));
    let is_same = asked == Path::new(reported)
        || inode().is_some_and(|it| identity(fs::metadata(reported)) == Some(it));
    let asked = asked.display();
    (!is_same).then(|| format!("the sandbox of prevResult is {reported}, not {asked}"))
}

/// Returns the host's interface `name` from `prevResult`, or `None` if `prevResult` does not list
/// it.
fn on_host<'r>(expected: &'r AddResult, name: &str) -> Option<&'r Interface> {
    let mut reported = expected.interfaces.iter();
    reported.find(|it| it.sandbox.is_none() && it.name == name)
}

/// Checks whether the configuration, the kernel and the bridge let an ADD succeed, then calls
/// STATUS of the IPAM plugin.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the kernel lacks a part of `nf_tables` that the configuration needs.
/// - Code 50: every ADD would fail because of the state of the bridge.
/// - The error of the IPAM plugin, with its code.
pub(crate) fn status<T: Topology>(request: &StatusRequest) -> anyhow::Result<()> {
    let topology = T::parse(&request.network)?;
    topology.guard().probe()?;
    topology.probe_host_side()?;
    cni::step("ask the IPAM plugin");
    forward(&request.network, Verb::Status)
}
