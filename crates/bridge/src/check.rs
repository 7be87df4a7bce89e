//! CHECK: compares the state with the result of ADD.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::bail;
use cni::result::Interface;
use cni::{AddResult, CheckRequest, Error, Verb};
use netlink::{Connection, Link, LinkKind, MacAddress, PortVlans, Tagging};
use netns::{Netns, Sysctl};

use crate::config::{BridgeNfCall, Config, ContainerLink, Gateway, Isolation, PortMode};
use crate::firewall::{self, Subject};
use crate::host::BRIDGE_NF_CALL;
use crate::host_end::HostEnd;
use crate::plan::Plan;
use crate::sandbox::Sandbox;
use crate::vlan::{self, DefaultVlan};
use crate::{del, plan};

/// Runs the IPAM plugin's CHECK, then compares links, addresses, routes and sysctls.
///
/// Later plugins of the chain may change MTUs and add addresses of other interfaces. They may
/// remove routes from the result or move them to other tables. An operator may lower a network's
/// MTU while containers run. None of these is a difference.
///
/// # Errors
/// All differences in one error; code 7 without a `prevResult`.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    let expected = request.chained()?;
    cni::step("ask the IPAM plugin");
    del::forward(&request.network, Verb::Check)?;
    cni::step("compare");
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let place = place_of_container(request, expected);
    let check = Check {
        reported: place.and_then(|place| expected.interfaces.get(place)),
        plan: match config.container_link {
            ContainerLink::Addressed => Plan::reported(&config, expected, place)?,
            ContainerLink::Up | ContainerLink::Down => Plan::default(),
        },
        request,
        config: &config,
        expected,
        host: Connection::open()?,
        namespace: &namespace,
        sandbox: Sandbox::open(&namespace, &request.attachment.interface)?,
    };
    let differences = check.differences()?;
    if differences.is_empty() {
        return Ok(());
    }
    bail!(
        "{} is not as ADD left it: {}",
        request.attachment,
        differences.join("; ")
    )
}

/// Returns the index of the container's link in `interfaces`.
fn place_of_container(request: &CheckRequest, expected: &AddResult) -> Option<usize> {
    let name = request.attachment.interface.as_str();
    let is_it = |it: &Interface| it.sandbox.is_some() && it.name == name;
    expected.interfaces.iter().position(is_it)
}

struct Check<'a> {
    /// The container's link in `prevResult`.
    reported: Option<&'a Interface>,
    plan: Plan,
    request: &'a CheckRequest,
    config: &'a Config,
    expected: &'a AddResult,
    host: Connection,
    namespace: &'a Netns,
    sandbox: Sandbox<'a>,
}

impl Check<'_> {
    fn differences(&self) -> anyhow::Result<Vec<String>> {
        let bridge = self.host.find_link(self.config.bridge.as_str())?;
        let container = self.sandbox.find_link()?;
        let (Some(bridge), Some(container)) = (&bridge, &container) else {
            let bridge = bridge
                .is_none()
                .then(|| format!("bridge {} is gone", self.config.bridge));
            let link = &self.request.attachment.interface;
            let container = container
                .is_none()
                .then(|| format!("{link} in the sandbox is gone"));
            return Ok(bridge.into_iter().chain(container).collect());
        };
        let mut found = Differences::default();
        found.unless(bridge.kind == LinkKind::Bridge, || {
            format!("{} is no bridge", bridge.name)
        });
        found.unless(bridge.is_up, || format!("bridge {} is down", bridge.name));
        let promiscuous = self.config.port_mode == PortMode::Promiscuous;
        found.unless(promiscuous == bridge.is_promiscuous, || {
            let state = if promiscuous { "not " } else { "" };
            format!("bridge {} is {state}promiscuous", bridge.name)
        });
        found.compare_mac(bridge, self.on_host(&bridge.name));
        found.unless(container.kind == LinkKind::Veth, || {
            format!("{} is no veth", container.name)
        });
        let is_down = self.config.container_link == ContainerLink::Down;
        found.unless(container.is_up != is_down, || {
            let state = if is_down { "up" } else { "down" };
            format!("{} is {state}", container.name)
        });
        found.compare_mac(container, self.reported);
        found.0.extend(self.other_sandbox());
        self.port(bridge, container, &mut found)?;
        self.addresses(bridge, container, &mut found)?;
        self.sysctls(&mut found)?;
        Ok(found.0)
    }

    /// Returns a link of the host from `prevResult`.
    fn on_host(&self, name: &str) -> Option<&Interface> {
        let mut reported = self.expected.interfaces.iter();
        reported.find(|it| it.sandbox.is_none() && it.name == name)
    }

    /// Returns a message if the result names another sandbox than the request.
    fn other_sandbox(&self) -> Option<String> {
        let (asked, reported) = (&self.request.netns, self.reported?.sandbox.as_ref()?);
        let is_same = asked.as_path() == Path::new(reported)
            || inode(asked).is_some_and(|it| inode(reported.as_ref()) == Some(it));
        let asked = asked.display();
        (!is_same).then(|| format!("the sandbox of prevResult is {reported}, not {asked}"))
    }

    /// Checks the host's end, which is found by the container's, so this covers attachments of the
    /// reference.
    fn port(&self, bridge: &Link, container: &Link, found: &mut Differences) -> anyhow::Result<()> {
        let Some(port) = self.host.other_end(container, self.namespace)? else {
            found.0.push(format!(
                "the other end of {} is not on this host",
                container.name
            ));
            return Ok(());
        };
        let name = &port.name;
        found.unless(port.is_up, || format!("{name} is down"));
        found.unless(port.master == Some(bridge.index), || {
            format!("{name} is no port of {}", bridge.name)
        });
        self.port_flags(&port, found);
        self.port_vlans(bridge, &port, found)?;
        let is_ours = *name == plan::host_link_name(&self.request.attachment);
        let owner = self.request.attachment.owner();
        found.unless(!is_ours || port.alias.as_ref() == Some(&owner), || {
            format!("the alias of {name} is not {owner}")
        });
        if let Some(mac) = container.mac.filter(|_| is_ours) {
            self.protection((bridge, &port), mac, found)?;
        }
        found.compare_mac(&port, self.on_host(name));
        Ok(())
    }

    /// Checks the `nf_tables` elements, except for attachments of the reference, which has its own
    /// rules.
    fn protection(
        &self,
        (bridge, port): (&Link, &Link),
        mac: MacAddress,
        found: &mut Differences,
    ) -> anyhow::Result<()> {
        let owner = self.request.attachment.owner();
        let subject = Subject {
            bridge,
            port: &port.name,
            mac,
            ips: &self.plan.ips,
            owner: &owner,
        };
        let wanted = firewall::wanted(self.config, &subject)?;
        found.0.extend(firewall::differences(&wanted)?);
        Ok(())
    }

    fn port_vlans(
        &self,
        bridge: &Link,
        port: &Link,
        found: &mut Differences,
    ) -> anyhow::Result<()> {
        let Config {
            vlans,
            default_vlan,
            ..
        } = self.config;
        if vlans.is_empty() {
            return Ok(());
        }
        found.unless(vlan::is_filtering(bridge), || {
            format!("bridge {} does not filter VLANs", bridge.name)
        });
        let (name, carried) = (&port.name, self.host.port_vlans(port.index)?);
        let asked = vlans.asked();
        for wanted in &asked {
            found.unless(wanted.is_carried(&carried), || {
                format!("{name} does not carry {wanted}")
            });
        }
        // Earlier versions and the reference leave ports in the default VLAN, untagged; such ports
        // are accepted.
        let left = vlan::default_vlan(bridge).filter(|_| *default_vlan == DefaultVlan::Leave);
        let tagged = left.map(|left| PortVlans {
            tagging: Tagging::Tagged,
            ..left
        });
        if let Some(stays) = tagged.filter(|it| !it.is_carried(&asked)) {
            found.unless(!stays.is_carried(&carried), || {
                format!("{name} carries {stays}, the bridge's default")
            });
        }
        Ok(())
    }

    fn port_flags(&self, port: &Link, found: &mut Differences) {
        let name = &port.name;
        let hairpin = self.config.port_mode == PortMode::Hairpin;
        found.unless(port.port.is_some_and(|it| it.hairpin == hairpin), || {
            format!("hairpin mode of {name} is not {hairpin}")
        });
        let isolated = self.config.isolation == Isolation::Port;
        found.unless(port.port.is_some_and(|it| it.isolated == isolated), || {
            format!("isolation of {name} is not {isolated}")
        });
    }

    fn addresses(
        &self,
        bridge: &Link,
        container: &Link,
        found: &mut Differences,
    ) -> anyhow::Result<()> {
        let plan = &self.plan;
        found.0.extend(self.sandbox.differences(container, plan)?);
        if plan.gateways.is_empty() {
            return Ok(());
        }
        let end = HostEnd::find(&self.host, bridge, self.config.gateway_vlan())?;
        let Some(bears) = end.link(bridge) else {
            found
                .0
                .push("the host's end of the VLAN is gone".to_owned());
            return Ok(());
        };
        found.unless(bears.is_up, || format!("{} is down", bears.name));
        let addresses = self.host.addresses(bears.index)?;
        for gateway in &plan.gateways {
            let is_there = addresses.iter().any(|it| it.address == *gateway);
            found.unless(is_there, || {
                format!("{} lacks address {gateway}", bears.name)
            });
        }
        Ok(())
    }

    fn sysctls(&self, found: &mut Differences) -> anyhow::Result<()> {
        let mut wanted = Vec::new();
        let has = |is_family: fn(&ipnetwork::IpNetwork) -> bool| {
            self.plan.ips.iter().any(|ip| is_family(&ip.address))
                && self.config.gateway != Gateway::None
        };
        if has(ipnetwork::IpNetwork::is_ipv4) {
            wanted.push(Sysctl::new(&["net", "ipv4", "ip_forward"]));
        }
        if has(ipnetwork::IpNetwork::is_ipv6) {
            wanted.push(Sysctl::ipv6("all", "forwarding"));
        }
        if self.config.bridge_nf_call == BridgeNfCall::Enable {
            wanted.extend(BRIDGE_NF_CALL.map(|name| Sysctl::new(&["net", "bridge", name])));
        }
        for sysctl in wanted {
            match sysctl.read() {
                Ok(value) => found.unless(value == "1", || {
                    format!("sysctl {} is {value}, not 1", sysctl.key())
                }),
                // Without the module ADD could not set anything.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns the identity of a namespace, whatever its path.
fn inode(namespace: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(namespace).ok()?;
    Some((file.dev(), file.ino()))
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn unless(&mut self, holds: bool, difference: impl FnOnce() -> String) {
        if !holds {
            self.0.push(difference());
        }
    }

    fn compare_mac(&mut self, link: &Link, reported: Option<&Interface>) {
        let Some(reported) = reported else {
            self.0
                .push(format!("prevResult does not mention {}", link.name));
            return;
        };
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        let same_mac = reported
            .mac
            .as_ref()
            .is_none_or(|it| it.eq_ignore_ascii_case(&mac));
        self.unless(same_mac, || {
            format!(
                "{} has MAC {mac}, not {}",
                link.name,
                reported.mac.clone().unwrap_or_default()
            )
        });
    }
}
