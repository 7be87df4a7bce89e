//! The container's end of the pair, inside the sandbox.

use std::time::Duration;

use anyhow::Context as _;
use cni::result::{IpConfig, Route};
use cni::{Error, InterfaceName, note};
use ipnetwork::IpNetwork;
use netlink::{
    Address, Connection, Dad, Link, LinkChange, LinkLocalOrigin, MacAddress, Monitor, NewRoute,
    Request, Wait,
};
use netns::{Netns, Sysctl};

use crate::plan::{self, Ipv6, Plan};

/// The sandbox, and the name of the link that is made there.
pub(crate) struct Sandbox<'a> {
    namespace: &'a Netns,
    connection: Connection,
    monitor: Monitor,
    interface: &'a str,
    link_local: LinkLocal,
}

/// The link-local address of the container's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkLocal {
    /// IPv6 is off, or nothing is configured yet.
    None,
    /// The sandbox wants none: `addr_gen_mode` is 1.
    Unwanted,
    /// It works already, and the kernel must not make it.
    Given,
    /// The kernel makes it when the pair comes up, or made it when IPv6 was enabled on a link that was up.
    Awaited,
}

impl<'a> Sandbox<'a> {
    /// Opens a connection into the sandbox.
    ///
    /// # Errors
    /// Code 4: it cannot be entered.
    pub fn open(namespace: &'a Netns, interface: &'a InterfaceName) -> Result<Self, Error> {
        let open = || Ok((Connection::open()?, Monitor::open()?));
        let opened = namespace.run(open).map_err(netlink::Error::from);
        let (connection, monitor) = opened.flatten().map_err(Error::sandbox)?;
        Ok(Self {
            namespace,
            connection,
            monitor,
            interface: interface.as_str(),
            link_local: LinkLocal::None,
        })
    }

    /// The link, if there is one.
    pub fn find_link(&self) -> anyhow::Result<Option<Link>> {
        Ok(self.connection.find_link(self.interface)?)
    }

    /// Brings the link up before it has an address, and returns it as it is then.
    pub fn bring_up(&mut self, link: &Link, dad: Dad) -> anyhow::Result<Link> {
        let requests = self.prepare(link, dad, Ipv6::Off)?;
        let brought_up = self.connection.execute(requests).and_then(|()| {
            self.connection
                .change_link(self.interface, &[LinkChange::Up])
        });
        brought_up.context("bring up the container's link")
    }

    /// Gives the link its addresses and routes and brings it up.
    pub fn configure(&mut self, link: &Link, plan: &Plan, dad: Dad) -> anyhow::Result<()> {
        let mut requests = self.prepare(link, dad, plan.ipv6())?;
        let add = |ip: &IpConfig| Request::add_address(link.index, ip.address, dad);
        requests.extend(plan.ips.iter().map(add));
        requests.push(Request::change_link(self.interface, &LinkChange::Up));
        let routes = plan.routes.iter();
        requests.extend(routes.map(|route| Request::add_route(&new_route(route, plan, link))));
        self.connection
            .execute(requests)
            .context("configure the container's link")
    }

    /// What comes before its addresses: gratuitous ARP when the MAC is set, the IPv6 of `needed`,
    /// and a link-local address that works at once.
    ///
    /// The kernel would give the link one only after the pair has come up, and by `accept_dad`
    /// at once. That is set for a container that has other IPv6 addresses, or has to perform
    /// duplicate address detection; any other is spared the search for its sysctls.
    fn prepare(&mut self, link: &Link, dad: Dad, needed: Ipv6) -> anyhow::Result<Vec<Request>> {
        let change = |change| Request::change_link(self.interface, &change);
        let mut requests = vec![change(LinkChange::ArpNotify)];
        if needed == Ipv6::On || dad == Dad::Perform {
            self.set_sysctls(dad, needed)?;
        }
        let is_on = |it: &netlink::Ipv6| needed == Ipv6::On || !it.is_disabled;
        let (Some(ipv6), LinkLocal::None) = (link.ipv6.filter(is_on), self.link_local) else {
            return Ok(requests);
        };
        self.link_local = match (ipv6.link_local, link.mac) {
            (LinkLocalOrigin::None, _) => LinkLocal::Unwanted,
            (LinkLocalOrigin::Mac, Some(mac)) if dad == Dad::Skip && !link.is_up => {
                let address = IpNetwork::new(mac.link_local().into(), LINK_LOCAL_PREFIX)?;
                requests.push(change(LinkChange::LinkLocal(LinkLocalOrigin::None)));
                requests.push(Request::add_address(link.index, address, dad));
                LinkLocal::Given
            }
            _ => LinkLocal::Awaited,
        };
        Ok(requests)
    }

    /// Sets what must be set while the link is down, and IPv6 where it is needed.
    ///
    /// `ndisc_notify` makes the kernel announce addresses when the MAC is set;
    /// `keep_addr_on_down` keeps IPv6 addresses through a link that flaps. None of
    /// them is worth a container without network: what cannot be set is told.
    fn set_sysctls(&self, dad: Dad, needed: Ipv6) -> anyhow::Result<()> {
        let accept_dad = match dad {
            Dad::Perform => "1",
            Dad::Skip => "0",
        };
        let wishes = [
            (Sysctl::ipv6(self.interface, "ndisc_notify"), "1"),
            (Sysctl::ipv6(self.interface, "keep_addr_on_down"), "1"),
            (Sysctl::ipv6(self.interface, "accept_dad"), accept_dad),
        ];
        self.namespace.run(|| {
            for (sysctl, value) in &wishes {
                if let Err(error) = sysctl.ensure_if_present(value) {
                    note(format_args!(
                        "in the sandbox: {:#}",
                        anyhow::Error::from(error)
                    ));
                }
            }
            if needed == Ipv6::On {
                Sysctl::ipv6("lo", "disable_ipv6").ensure("0")?;
                Sysctl::ipv6(self.interface, "disable_ipv6").ensure("0")?;
            }
            Ok(())
        })?
    }

    /// Waits until the link passes traffic and has its IPv6 addresses, the link-local one
    /// included where it gets one; returns the link as it is then. When it flaps, the kernel
    /// gives it a link-local address.
    pub fn wait_until_ready(&mut self, link: &Link, dad: Dad) -> anyhow::Result<Link> {
        let up = format!("the container's {} to come up", self.interface);
        let wait = Wait {
            link: link.index,
            what: &up,
            deadline: DEADLINE,
        };
        let link = self
            .monitor
            .wait_for_link(&self.connection, &wait, |link| link.is_operational)?;
        let link_local = self.link_local;
        match link_local {
            LinkLocal::None => return Ok(link),
            LinkLocal::Given => {
                let again = LinkChange::LinkLocal(LinkLocalOrigin::Mac);
                let again = Request::change_link(self.interface, &again);
                self.connection.execute(vec![again])?;
                return Ok(link);
            }
            LinkLocal::Unwanted | LinkLocal::Awaited => {}
        }
        let settled = format!("the IPv6 addresses of the container's {}", self.interface);
        let wait = Wait {
            what: &settled,
            ..wait
        };
        let is_settled = |addresses: &[Address]| {
            let is_pending =
                |it: &Address| it.is_tentative && dad == Dad::Perform && !it.is_duplicate;
            let has_link_local = addresses.iter().any(|it| it.is_link_local);
            (has_link_local || link_local == LinkLocal::Unwanted)
                && !addresses.iter().any(is_pending)
        };
        let addresses = self
            .monitor
            .wait_for_addresses(&self.connection, &wait, is_settled)?;
        let duplicate = addresses.iter().find(|it| it.is_duplicate);
        if let Some(Address { address, .. }) = duplicate {
            anyhow::bail!("{address} is in use by another host on the network");
        }
        Ok(link)
    }

    /// Tells the neighbours which MAC the addresses have now, by gratuitous ARP and by
    /// unsolicited neighbour advertisements.
    pub fn announce(&self, mac: MacAddress) -> anyhow::Result<()> {
        let request = Request::change_link(self.interface, &LinkChange::Mac(mac));
        self.connection
            .execute(vec![request])
            .context("announce the container's addresses")
    }

    /// What `plan` wants and the sandbox does not have, in words.
    pub fn differences(&self, link: &Link, plan: &Plan) -> anyhow::Result<Vec<String>> {
        let name = &link.name;
        let addresses = self.connection.addresses(link.index)?;
        let missing = plan
            .ips
            .iter()
            .filter(|ip| !addresses.iter().any(|it| it.address == ip.address));
        let mut differences: Vec<_> = missing
            .map(|ip| format!("{name} lacks address {}", ip.address))
            .collect();
        let routes = self.connection.routes()?;
        for wanted in &plan.routes {
            let wanted = new_route(wanted, plan, link);
            let (network, prefix) = (wanted.destination.network(), wanted.destination.prefix());
            let is_there = routes.iter().any(|it| {
                (it.destination.ip(), it.destination.prefix()) == (network, prefix)
                    && it.leads_by(link.index, wanted.gateway)
                    && wanted.table.is_none_or(|table| it.table == table)
                    && wanted
                        .priority
                        .is_none_or(|priority| it.priority == Some(priority))
            });
            if !is_there {
                differences.push(format!("{name} lacks the route to {}", wanted.destination));
            }
        }
        Ok(differences)
    }
}

fn new_route(route: &Route, plan: &Plan, link: &Link) -> NewRoute {
    NewRoute {
        destination: route.dst,
        gateway: plan::next_hop(route, &plan.ips),
        link: link.index,
        mtu: route.mtu,
        advmss: route.advmss,
        // 0 stands for the kernel's choice in both.
        priority: route.priority.filter(|priority| *priority != 0),
        table: route.table.filter(|table| *table != 0),
        scope: route.scope,
    }
}

/// The kernel's own choice (RFC 4291, 2.5.6).
const LINK_LOCAL_PREFIX: u8 = 64;

/// The kernel takes a millisecond or two to bring a pair up, duplicate address detection
/// one to two seconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
