//! ADD: obtains the lease, sets up the bridge, creates the veth pair and configures the sandbox. A
//! failed ADD rolls these steps back, except that the bridge stays.

use std::net::IpAddr;

use anyhow::Context as _;
use cni::delegate::{Delegate, Started};
use cni::result::{Interface, IpConfig};
use cni::{
    AddRequest, AddResult, Answer, Answered, Attachment, CniArgs, Error, Undo, Verb, note_failure,
};
use netlink::{Connection, Link, LinkChange, MacAddress, Monitor, VethEnd, VethPair};
use netns::{Netns, Sysctl};

use crate::desired::explain_full_bridge;
use crate::gateway::{self, Gateways};
use crate::gateway_conflict::expect_free;
use crate::lease::{Lease, uses_link};
use crate::rollback::Made;
use crate::sandbox::{self, Sandbox};
use crate::standby::Precedence;
use crate::{
    Addressing, ContainerLink, Desired, HostSide, Topology, asked_mac, guard, hardening, names,
    routed,
};

/// Connects the sandbox to the host and returns the result. If a step fails, the rollback removes
/// the veth pair, its `nf_tables` elements and the lease. The bridge stays, because other
/// attachments may use it.
///
/// # Errors
/// - Codes 2, 4 and 7: the configuration, an argument or the lease is invalid.
/// - Other codes: a step failed.
pub(crate) fn add<T: Topology>(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let args = request.args()?;
    let mac = asked_mac(&request.network, &args)?;
    let topology = T::parse(&request.network)?;
    expect_first_of_chain(request, T::NAME)?;
    let lease = Lease::prepare(&request.network, topology.gateway())?;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    cni::step("look into the sandbox");
    let host = Connection::open()?;
    let made = Made::default();
    let mut add = Add {
        undo: Undo::default(),
        made: &made,
        request,
        topology: &topology,
        args: &args,
        mac,
        namespace: &namespace,
        host: &host,
        sandbox: Sandbox::open(&namespace, &request.attachment.interface)?,
        host_name: names::host_link_name(&request.attachment),
    };
    add.expect_nothing_there()?;
    add.prepare_undo();
    let result = match lease {
        // Without an IPAM plugin, the container configures its interface itself.
        Lease::None => {
            let side = topology.ensure_host_side(&host, &args)?;
            hardening::report_read_only(&side.unset, &Addressing::default())?;
            let desired = topology.desired(side, Addressing::default());
            add.connect(desired, AddResult::default())
        }
        Lease::BeforeLink(delegate) => add.lease_first(delegate),
        Lease::AfterLink(delegate) => add.link_first(delegate),
    }?;
    Ok(answer.give_and_keep(&result, add.undo)?)
}

/// Rejects a chain in which an earlier plugin created an interface other than `lo`. This plugin
/// creates the interface of the sandbox itself, so it must be the first of its chain.
fn expect_first_of_chain(request: &AddRequest, plugin: &str) -> Result<(), Error> {
    let mut made = request.prev_result.iter().flat_map(|it| &it.interfaces);
    let Some(Interface { name, .. }) = made.find(|it| it.name != "lo") else {
        return Ok(());
    };
    let reason = format!(
        "an earlier plugin created interface {name}; {plugin} creates one itself and must be the \
         first of its chain"
    );
    Err(Error::invalid("prevResult", reason))
}

struct Add<'a, T> {
    undo: Undo<'a>,
    made: &'a Made,
    request: &'a AddRequest,
    topology: &'a T,
    args: &'a CniArgs,
    /// The MAC that the runtime or the operator requests; `None` if neither requests one.
    mac: Option<MacAddress>,
    namespace: &'a Netns,
    host: &'a Connection,
    sandbox: Sandbox<'a>,
    host_name: String,
}

/// Returns who made an interface whose other end on the host is `end`, and what the operator can do.
fn maker(end: Option<&Link>) -> String {
    let another = "or choose another name (CNI_IFNAME)";
    let owner = end.and_then(|it| Attachment::of_owner(it.alias.as_deref()?));
    match (owner, end) {
        (Some(owner), _) => format!("it belongs to {owner}: DEL that first, {another}"),
        (None, Some(end)) => format!(
            "another program made it, with the other end {} on the host: delete that, {another}",
            end.name
        ),
        (None, None) => format!("another program made it: delete it, {another}"),
    }
}

/// The veth pair and its bridge, read after the pair joined the bridge, because the kernel may then
/// have lowered the bridge's MTU.
struct Pair {
    bridge: Option<Link>,
    host: Link,
    container: Link,
    /// The MAC that ADD gave the container's end. The MAC in `container` is the current one: a
    /// process in the sandbox may have changed it already.
    mac: MacAddress,
}

impl<T: Topology> Add<'_, T> {
    /// Rejects the ADD if the host's end of the veth pair exists, or if the sandbox has an
    /// interface with the requested name. The caller registers the rollback only afterwards: a
    /// rejected ADD has created nothing, and the existing attachment must stay.
    fn expect_nothing_there(&self) -> anyhow::Result<()> {
        let attachment = &self.request.attachment;
        if self.host.find_link(&self.host_name)?.is_some() {
            anyhow::bail!(
                "{attachment} is attached already by {}; DEL it first",
                self.host_name
            );
        }
        if let Some(link) = self.sandbox.find_link()? {
            let end = self.host.other_end(&link, self.namespace)?;
            anyhow::bail!(
                "the sandbox has an interface {} already; {}",
                link.name,
                maker(end.as_ref())
            );
        }
        Ok(())
    }

    /// Registers the rollback of the lease, the veth pair and the `nf_tables` elements before they
    /// exist, so it covers a step that fails halfway. The rollback needs only the attachment to
    /// find them.
    fn prepare_undo(&mut self) {
        let (made, request) = (self.made, self.request);
        let undo = &mut self.undo;
        let release = || made.release_lease(request);
        let uses_link = uses_link(&request.network).unwrap_or_default();
        if !uses_link {
            undo.push("release the lease", release);
        }
        undo.push("delete the host link", || made.delete_pair(request));
        undo.push("remove nf_tables elements", || {
            made.remove_protection(request)
        });
        if uses_link {
            undo.push("release the lease", release);
        }
    }

    /// Sets up the bridge while the IPAM plugin runs. Creates the veth pair after the lease,
    /// because the leased addresses determine the MAC of the container's end.
    fn lease_first(&mut self, mut delegate: Started<'_>) -> anyhow::Result<AddResult> {
        delegate.proceed()?;
        let side = self.topology.ensure_host_side(self.host, self.args);
        cni::step("lease addresses");
        let lease = self.made.lease.wait_for(delegate);
        let (side, lease) = (side?, lease?);
        let desired = self.desired(side, &lease)?;
        self.connect(desired, lease)
    }

    fn connect(&mut self, desired: Desired, lease: AddResult) -> anyhow::Result<AddResult> {
        let pair = self.make_pair(&desired)?;
        let configured = self.configure(pair, &desired)?;
        Ok(self.result(&configured, desired, lease))
    }

    /// Creates the veth pair and brings it up before the IPAM plugin runs, because the plugin
    /// (`dhcp`, for example) may send packets over the container's link. So the MAC of the link
    /// does not depend on the leased addresses. The `nf_tables` elements that need no address exist
    /// before the link can send, and [`Self::configure`] adds the others.
    fn link_first(&mut self, delegate: Delegate<'_>) -> anyhow::Result<AddResult> {
        let side = self.topology.ensure_host_side(self.host, self.args)?;
        let early = self.topology.desired(side, Addressing::default());
        let mut pair = self.make_pair(&early)?;
        pair.container = self.sandbox.bring_up(&pair.container, &early.container)?;
        self.protect(&pair, &early)?;
        self.wait_for_port(self.bring_up_port(&pair, &early)?)?;
        cni::step("lease addresses");
        self.made.lease.expect();
        let lease = delegate.start(Verb::Add)?.result()?;
        let desired = self.desired(early.side, &lease)?;
        let pair = self.configure(pair, &desired)?;
        Ok(self.result(&pair, desired, lease))
    }

    fn desired(&self, side: HostSide, lease: &AddResult) -> anyhow::Result<Desired> {
        let addressing = Addressing::leased(self.topology.gateway(), lease, side.mtu)?;
        expect_free(self.host, &side, &addressing)?;
        hardening::report_read_only(&side.unset, &addressing)?;
        Ok(self.topology.desired(side, addressing))
    }

    fn make_pair(&self, desired: &Desired) -> anyhow::Result<Pair> {
        cni::step("make the pair");
        let side = &desired.side;
        let attachment = &self.request.attachment;
        let derived = || names::derived_mac(&desired.container.addressing.ips, attachment);
        let mac = self.mac.unwrap_or_else(derived);
        let pair = VethPair {
            host: VethEnd {
                name: &self.host_name,
                mac: names::host_mac(attachment),
            },
            container: VethEnd {
                name: attachment.interface.as_str(),
                mac,
            },
            mtu: side.mtu,
            master: side.bridge.as_ref().map(|bridge| bridge.index),
            alias: &attachment.owner(),
            sandbox: self.namespace,
        };
        let flags = desired.port.flag_requests(&self.host_name);
        let made = self.host.add_veth(&pair, flags);
        // If the error is that the name exists, another ADD created the pair. After any other
        // error, this ADD may have created the pair, so the rollback deletes it.
        let is_anothers = made.as_ref().is_err_and(netlink::Error::is_already_exists);
        self.made.pair.set(!is_anothers);
        let (host, bridge) =
            made.map_err(|error| explain_full_bridge(error, side.bridge.as_ref()))?;
        match &bridge {
            Some(_) => disable_ipv6(&self.host_name),
            None => routed::prepare_ipv6(&host, &desired.container.addressing.ips)?,
        }
        self.host.execute(desired.port.vlan_requests(host.index))?;
        let found = self.sandbox.find_link()?;
        Ok(Pair {
            bridge,
            host,
            container: found.context("the container's link was deleted during ADD")?,
            mac,
        })
    }

    /// Adds the `nf_tables` elements and the gateway addresses, configures both ends of the veth
    /// pair and brings them up. Returns their new state. If the container's end shall stay down
    /// ([`ContainerLink::Down`]), only adds the elements and brings the host's end up.
    fn configure(&mut self, mut pair: Pair, desired: &Desired) -> anyhow::Result<Pair> {
        self.protect(&pair, desired)?;
        let container = &desired.container;
        if container.link == ContainerLink::Down {
            self.sandbox.set_sysctls(&pair.container, container)?;
            self.bring_up_port(&pair, desired)?;
            return Ok(pair);
        }
        cni::step("ensure the gateways");
        let added = self.ensure_gateways(&pair, desired)?;
        cni::step("configure the sandbox");
        self.sandbox.configure(&pair.container, container)?;
        pair.host = self.wait_for_port(self.bring_up_port(&pair, desired)?)?;
        cni::step("wait for IPv6");
        pair.container = self.sandbox.wait_until_ready(&pair.container, container)?;
        let link = desired.side.gateway_link().unwrap_or(&pair.host);
        sandbox::wait_for_local_routes(self.host, &mut Monitor::new(), link, &added)?;
        // Announces the MAC to the neighbours on the bridge, which may have cached another MAC for
        // the addresses. Without a bridge, this is unnecessary: the host is the only neighbour, and
        // it has no cache entries yet for the new veth pair.
        if pair.bridge.is_some() && names::must_announce(&container.addressing.ips, pair.mac) {
            cni::step("announce the addresses");
            self.sandbox.announce(pair.mac)?;
        }
        Ok(pair)
    }

    /// Enables forwarding, and returns the addresses that this ADD adds to the host. The caller
    /// waits until the kernel delivers packets to the IPv6 addresses among them.
    ///
    /// - With a bridge, this function adds the gateway addresses that the bridge or its VLAN link
    ///   lacks.
    /// - Without a bridge, [`Self::bring_up_port`] adds the addresses to the host's end later.
    fn ensure_gateways(&mut self, pair: &Pair, desired: &Desired) -> anyhow::Result<Vec<IpAddr>> {
        let (side, addressing) = (&desired.side, &desired.container.addressing);
        let (Some(bridge), Some(link)) = (&side.bridge, side.gateway_link()) else {
            gateway::enable_forwarding(self.host, &addressing.gateways)?;
            return Ok(routed::host_addresses(&pair.host, addressing));
        };
        let gateways = Gateways {
            host: self.host,
            bridge,
            link,
            port: &pair.host.name,
            addresses: &addressing.gateways,
            other: desired.other_address,
        };
        gateways.ensure(&mut self.undo)
    }

    /// Adds the attachment's `nf_tables` elements: for the check of the source MAC, against
    /// duplicate frames and for masquerading, as far as configured. The host's end is still down
    /// when ADD first calls this function, so the sandbox has sent no packet yet.
    fn protect(&self, pair: &Pair, desired: &Desired) -> anyhow::Result<()> {
        cni::step("protect the pair");
        let owner = self.request.attachment.owner();
        let port = &pair.host.name;
        let wanted = desired.protections(port, pair.mac, &owner)?;
        guard::install(&wanted, port, Precedence::Take)?;
        Ok(())
    }

    /// Brings the host's end up. Without a bridge, also adds the gateway addresses to the host's
    /// end and the routes to the container.
    ///
    /// The caller does this as late as possible: as soon as both ends are up, the kernel announces
    /// the container's IPv6 addresses to every port of the bridge. During these announcements, the
    /// kernel answers netlink requests slowly.
    fn bring_up_port(&self, pair: &Pair, desired: &Desired) -> anyhow::Result<Link> {
        cni::step("bring up the port");
        let port = &pair.host.name;
        let addressing = &desired.container.addressing;
        let requests = routed::host_requests(self.host, &pair.host, addressing)?;
        self.host.execute(requests)?;
        Ok(self.host.change_link(port, &[LinkChange::Up])?)
    }

    /// Waits until the host's end is up. With a bridge, also waits until the bridge has enabled it
    /// as a port.
    ///
    /// Without the spanning tree protocol (STP), an enabled port forwards at once. With the
    /// kernel's STP, the port forwards only 30 s later. With STP in user space (`stp_state` 2), the
    /// port may start as blocked. ADD does not wait for STP.
    fn wait_for_port(&self, port: Link) -> anyhow::Result<Link> {
        let works = |link: &Link| {
            let is_enabled = link.port.as_ref().is_some_and(|it| it.is_enabled);
            link.is_operational && (link.master.is_none() || is_enabled)
        };
        if works(&port) {
            return Ok(port);
        }
        let what = format!("port {} to come up", port.name);
        let wait = sandbox::wait(&port, &what);
        Ok(Monitor::new().wait_for_link(self.host, &wait, works)?)
    }

    fn result(&self, pair: &Pair, desired: Desired, lease: AddResult) -> AddResult {
        let mut container = interface(&pair.container);
        container.mac = Some(pair.mac.to_string());
        container.sandbox = Some(self.request.netns.to_string_lossy().into_owned());
        let mut interfaces: Vec<_> = pair.bridge.iter().map(interface).collect();
        interfaces.extend([interface(&pair.host), container]);
        let place = interfaces.len().saturating_sub(1);
        interfaces.extend(desired.side.vlan_link.iter().map(interface));
        let addressing = desired.container.addressing;
        AddResult {
            ips: placed(addressing.ips, place).collect(),
            interfaces,
            routes: addressing.routes,
            dns: desired.dns.unwrap_or(lease.dns),
            extra: lease.extra,
        }
    }
}

/// Disables IPv6 on a port of a bridge. The port needs no IPv6 of its own. With IPv6, each port has
/// three routes, and the kernel walks through the routes of all ports whenever a link is added or
/// deleted.
fn disable_ipv6(port: &str) {
    note_failure(Sysctl::ipv6(port, "disable_ipv6").ensure_if_present("1"));
}

/// Returns the addresses as those of the interface at this index of the result's interfaces.
pub fn placed(ips: Vec<IpConfig>, place: usize) -> impl Iterator<Item = IpConfig> {
    let interface = Some(place);
    ips.into_iter().map(move |ip| IpConfig { interface, ..ip })
}

/// Returns `link` as an interface of the result. The `sandbox` is `None`, so a caller must set it
/// for a link inside a sandbox.
pub fn interface(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()),
        mtu: Some(link.mtu),
        ..Interface::default()
    }
}
