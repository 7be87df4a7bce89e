//! ADD: lease, bridge, pair and sandbox, with a rollback.

use anyhow::Context as _;
use cni::delegate::{Delegate, Waiting};
use cni::result::Interface;
use cni::{AddRequest, AddResult, Answer, Answered, Error, Network, Undo, Verb, note};
use netlink::{
    BridgePort, Connection, Link, LinkChange, MacAddress, Monitor, PortState, Request, VethEnd,
    VethPair, Wait,
};
use netns::Netns;

use crate::config::{Config, ContainerLink, Gateway, Isolation, PortMode};
use crate::firewall::{self, Subject};
use crate::gateway::{self, Gateways};
use crate::host::{self, Bridge};
use crate::made::Made;
use crate::plan::{self, Plan};
use crate::sandbox::{DEADLINE, Sandbox};
use crate::vlan;

/// Joins the sandbox to the bridge and returns the result.
///
/// # Errors
/// The reason of a failure. ADD has deleted the pair and released the lease by then. The bridge
/// stays, since other containers may use it already.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network, &request.args()?)?;
    expect_first_of_chain(request)?;
    note_idle_keys(&config);
    let lease = Lease::prepare(&request.network)?;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    cni::step("look into the sandbox");
    let host = Connection::open()?;
    let made = Made::default();
    let mut attach = Attach {
        undo: Undo::default(),
        made: &made,
        request,
        config: &config,
        namespace: &namespace,
        host: &host,
        sandbox: Sandbox::open(&namespace, &request.attachment.interface)?,
        host_name: plan::host_link_name(&request.attachment),
    };
    attach.expect_nothing_there()?;
    attach.prepare_undo();
    let result = match lease {
        Lease::None => attach.without_lease(),
        Lease::BeforeLink(delegate) => attach.lease_first(delegate),
        Lease::AfterLink(delegate) => attach.link_first(delegate),
    }?;
    let answered = answer.give(&result)?;
    attach.undo.keep();
    Ok(answered)
}

/// Reports keys without an effect; the reference accepts them silently, so they are not errors.
fn note_idle_keys(config: &Config) {
    if config.gateway != Gateway::None && config.container_link != ContainerLink::Addressed {
        note("isGateway and isDefaultGateway do nothing without ipam, which leases the addresses");
    }
    if config.masquerade.is_some() && config.container_link != ContainerLink::Addressed {
        note("ipMasq does nothing without ipam, which leases the addresses");
    }
}

/// Checks that no earlier plugin made an interface except `lo`, which belongs to no network.
fn expect_first_of_chain(request: &AddRequest) -> Result<(), Error> {
    let made = request.prev_result.iter().flat_map(|it| &it.interfaces);
    match made.into_iter().find(|interface| interface.name != "lo") {
        None => Ok(()),
        Some(Interface { name, .. }) => Err(Error::invalid(
            "prevResult",
            format!(
                "a plugin before this one made {name}; bridge makes an interface of its own and must be the first of its chain"
            ),
        )),
    }
}

/// The IPAM plugin, and when it runs.
enum Lease<'a> {
    /// None.
    None,
    /// It is started already and runs before the link exists.
    BeforeLink(Waiting<'a>),
    /// It may look for the link, so it runs after the link exists.
    AfterLink(Delegate<'a>),
}

impl<'a> Lease<'a> {
    fn prepare(network: &'a Network) -> Result<Self, Error> {
        Ok(match Delegate::ipam(network)? {
            None => Self::None,
            Some(delegate) if SANDBOX_BLIND.contains(&delegate.name()) => {
                Self::BeforeLink(delegate.start(Verb::Add)?)
            }
            Some(delegate) => Self::AfterLink(delegate),
        })
    }
}

/// IPAM plugins that are known not to look into the sandbox, so they may run before the link
/// exists.
const SANDBOX_BLIND: &[&str] = &["host-local", "static"];

/// An attachment in progress.
struct Attach<'a> {
    undo: Undo<'a>,
    made: &'a Made,
    request: &'a AddRequest,
    config: &'a Config,
    namespace: &'a Netns,
    host: &'a Connection,
    sandbox: Sandbox<'a>,
    host_name: String,
}

/// Both ends of the pair, and the bridge after they joined it: the kernel may have lowered its MTU.
struct Pair {
    bridge: Link,
    host: Link,
    container: Link,
}

impl Attach<'_> {
    /// Checks that the attachment does not exist; a second ADD must not change the first one's
    /// work.
    fn expect_nothing_there(&self) -> anyhow::Result<()> {
        let attachment = &self.request.attachment;
        if self.host.find_link(&self.host_name)?.is_some() {
            anyhow::bail!(
                "{attachment} is attached already by {}; DEL it first",
                self.host_name
            );
        }
        if let Some(link) = self.sandbox.find_link()? {
            anyhow::bail!("the sandbox has an interface {} already", link.name);
        }
        Ok(())
    }

    /// Adds the rollback steps, which find their objects by the attachment.
    fn prepare_undo(&mut self) {
        let (made, request) = (self.made, self.request);
        let undo = &mut self.undo;
        undo.push("release the lease", || made.release_lease(request));
        undo.push("delete the host link", || made.delete_pair(request));
        undo.push("remove nf_tables elements", || {
            made.remove_protection(request)
        });
    }

    /// Leases before the link exists, since the address determines the MAC. The IPAM plugin runs
    /// while the bridge is ensured.
    fn lease_first(&mut self, delegate: Waiting<'_>) -> anyhow::Result<AddResult> {
        let running = delegate.proceed()?;
        cni::step("ensure the bridge");
        let bridge = host::ensure_bridge(self.host, self.config);
        cni::step("lease addresses");
        let lease = running.result();
        // An address that the IPAM plugin refused may belong to a concurrent ADD.
        let is_refused = lease.as_ref().is_err_and(Error::is_answer);
        self.made.lease.set(!is_refused);
        let (bridge, lease) = (bridge?, lease?);
        let plan = self.plan(&bridge, &lease)?;
        let derived = plan::derived_mac(&plan.ips, &self.request.attachment);
        let pair = self.make_pair(&bridge, derived)?;
        self.configure(&bridge, pair, (plan, lease))
    }

    /// Joins a sandbox without leased addresses: the container configures the link itself.
    fn without_lease(&mut self) -> anyhow::Result<AddResult> {
        cni::step("ensure the bridge");
        let bridge = host::ensure_bridge(self.host, self.config)?;
        let mac = plan::early_mac(&self.request.attachment);
        let pair = self.make_pair(&bridge, mac)?;
        self.configure(&bridge, pair, (Plan::default(), AddResult::default()))
    }

    /// Joins the link first: the IPAM plugin finds it up in the sandbox, with its final MAC.
    fn link_first(&mut self, delegate: Delegate<'_>) -> anyhow::Result<AddResult> {
        cni::step("ensure the bridge");
        let bridge = host::ensure_bridge(self.host, self.config)?;
        let mac = plan::early_mac(&self.request.attachment);
        let mut pair = self.make_pair(&bridge, mac)?;
        pair.container = self.sandbox.bring_up(&pair.container, self.config.dad)?;
        self.wait_for_port(self.bring_up_port(&pair)?)?;
        cni::step("lease addresses");
        self.made.lease.set(true);
        let lease = delegate.start(Verb::Add)?.proceed()?.result()?;
        let plan = self.plan(&bridge, &lease)?;
        self.configure(&bridge, pair, (plan, lease))
    }

    fn plan(&self, bridge: &Bridge, lease: &AddResult) -> anyhow::Result<Plan> {
        let plan = Plan::new(self.config, lease, bridge.mtu)?;
        gateway::expect_free(self.host, bridge, &plan.gateways)?;
        Ok(plan)
    }

    fn make_pair(&self, bridge: &Bridge, mac: MacAddress) -> anyhow::Result<Pair> {
        cni::step("make the pair");
        let attachment = &self.request.attachment;
        let pair = VethPair {
            host: VethEnd {
                name: &self.host_name,
                mac: plan::host_mac(attachment),
            },
            container: VethEnd {
                name: attachment.interface.as_str(),
                mac: self.config.mac.unwrap_or(mac),
            },
            mtu: bridge.mtu,
            master: bridge.link.index,
            alias: &attachment.owner(),
            sandbox: self.namespace,
        };
        let made = self.host.add_veth(&pair, self.port_changes());
        // The kernel may have created the pair before any other refusal.
        let is_anothers = made.as_ref().is_err_and(netlink::Error::is_already_exists);
        self.made.pair.set(!is_anothers);
        let (host, joined) = made.map_err(|error| {
            if error.is_bridge_full() {
                return host::no_port_left(&bridge.link).context(error);
            }
            error.into()
        })?;
        host::disable_ipv6(&self.host_name);
        let config = self.config;
        let vlans = vlan::port_requests((&joined, &host), &config.vlans, config.default_vlan);
        self.host.execute(vlans)?;
        let found = self.sandbox.find_link()?;
        let container = found.context("the container's link is gone")?;
        Ok(Pair {
            bridge: joined,
            host,
            container,
        })
    }

    fn port_changes(&self) -> Vec<Request> {
        let hairpin = (self.config.port_mode == PortMode::Hairpin).then_some(LinkChange::Hairpin);
        let isolated = (self.config.isolation == Isolation::Port).then_some(LinkChange::Isolated);
        let changes = hairpin.into_iter().chain(isolated);
        changes
            .map(|change| Request::change_link(&self.host_name, &change))
            .collect()
    }

    fn configure(
        &mut self,
        bridge: &Bridge,
        mut pair: Pair,
        (plan, lease): (Plan, AddResult),
    ) -> anyhow::Result<AddResult> {
        let config = self.config;
        self.protect(bridge, &pair, &plan)?;
        if config.container_link == ContainerLink::Down {
            self.bring_up_port(&pair)?;
            return Ok(self.result(bridge, &pair, (plan, lease)));
        }
        cni::step("ensure the gateways");
        let gateways = Gateways {
            host: self.host,
            bridge,
            port: &pair.host.name,
            addresses: &plan.gateways,
            other: bridge.other_address(config),
        };
        gateways.ensure(&mut self.undo)?;
        cni::step("configure the sandbox");
        self.sandbox.configure(&pair.container, &plan, config.dad)?;
        pair.host = self.wait_for_port(self.bring_up_port(&pair)?)?;
        cni::step("wait for IPv6");
        pair.container = self.sandbox.wait_until_ready(&pair.container, config.dad)?;
        if let Some(mac) = pair.container.mac
            && plan::must_announce(&plan.ips, mac)
        {
            cni::step("announce the addresses");
            self.sandbox.announce(mac)?;
        }
        Ok(self.result(bridge, &pair, (plan, lease)))
    }

    /// Adds the `nf_tables` elements before the sandbox can send.
    fn protect(&self, bridge: &Bridge, pair: &Pair, plan: &Plan) -> anyhow::Result<()> {
        cni::step("protect the pair");
        let mac = pair.container.mac;
        let subject = Subject {
            bridge: &bridge.link,
            port: &pair.host.name,
            mac: mac.context("the container's link has no MAC")?,
            ips: &plan.ips,
            owner: &self.request.attachment.owner(),
        };
        firewall::install(&firewall::wanted(self.config, &subject)?)?;
        Ok(())
    }

    /// Brings the port up, as the last step. The pair comes up with it, and the kernel announces
    /// the container's IPv6 addresses to all ports of the bridge. During that time it answers
    /// hardly any requests.
    fn bring_up_port(&self, pair: &Pair) -> anyhow::Result<Link> {
        cni::step("bring up the port");
        let port = &pair.host.name;
        Ok(self.host.change_link(port, &[LinkChange::Up])?)
    }

    /// Waits until the bridge has enabled the port. Without the spanning tree protocol (STP) the
    /// port forwards from then on. The kernel's STP takes another 30 s; STP in user space
    /// (`stp_state` 2) starts with a blocked port. ADD waits for neither.
    fn wait_for_port(&self, port: Link) -> anyhow::Result<Link> {
        let works = |link: &Link| {
            let is_enabled = |port: BridgePort| port.state != PortState::Disabled;
            link.is_operational && link.port.is_some_and(is_enabled)
        };
        if works(&port) {
            return Ok(port);
        }
        let what = format!("port {} to come up", port.name);
        let wait = Wait {
            link: port.index,
            what: &what,
            deadline: DEADLINE,
        };
        Ok(Monitor::new().wait_for_link(self.host, &wait, works)?)
    }

    fn result(&self, bridge: &Bridge, pair: &Pair, (plan, lease): (Plan, AddResult)) -> AddResult {
        let mut container = interface(&pair.container);
        container.sandbox = Some(self.request.netns.to_string_lossy().into_owned());
        let mut interfaces = vec![interface(&pair.bridge), interface(&pair.host), container];
        let container = interfaces.len().saturating_sub(1);
        interfaces.extend(bridge.vlan_link.as_ref().map(interface));
        let ips = plan.ips.into_iter().map(|mut ip| {
            ip.interface = Some(container);
            ip
        });
        AddResult {
            ips: ips.collect(),
            interfaces,
            routes: plan.routes,
            dns: self.config.dns.clone().unwrap_or(lease.dns),
            extra: lease.extra,
        }
    }
}

fn interface(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()),
        mtu: Some(link.mtu),
        ..Interface::default()
    }
}
