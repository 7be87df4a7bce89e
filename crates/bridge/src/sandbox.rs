//! The container's end of the pair, inside the sandbox.

use std::time::Duration;

use anyhow::Context as _;
use cni::result::Route;
use cni::{Error, InterfaceName, note};
use netlink::{
    Address, Connection, Dad, Link, LinkChange, MacAddress, Monitor, NewRoute, Request, Wait,
};
use netns::{Netns, Sysctl};

use crate::plan::{self, Ipv6, Plan};

/// The sandbox, and the name of the link that is made there.
pub(crate) struct Sandbox<'a> {
    namespace: &'a Netns,
    connection: Connection,
    monitor: Monitor,
    interface: &'a str,
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
        })
    }

    /// The link, if there is one.
    pub fn find_link(&self) -> anyhow::Result<Option<Link>> {
        Ok(self.connection.find_link(self.interface)?)
    }

    /// Brings the link up before it has an address.
    pub fn bring_up(&self, dad: Dad) -> anyhow::Result<()> {
        self.set_sysctls(dad, Ipv6::Off)?;
        let request = Request::change_link(self.interface, &LinkChange::Up);
        self.connection
            .execute(vec![request])
            .context("bring up the container's link")
    }

    /// Gives the link its addresses and routes and brings it up; says whether it has IPv6,
    /// which it may have without an address of the plan.
    pub fn configure(&self, link: &Link, plan: &Plan, dad: Dad) -> anyhow::Result<Ipv6> {
        let ipv6 = self.set_sysctls(dad, plan.ipv6())?;
        let addresses = plan
            .ips
            .iter()
            .map(|ip| Request::add_address(link.index, ip.address, dad));
        let up = Request::change_link(self.interface, &LinkChange::Up);
        let routes = plan
            .routes
            .iter()
            .map(|route| Request::add_route(&new_route(route, plan, link)));
        let requests = addresses.chain([up]).chain(routes).collect();
        let configured = self.connection.execute(requests);
        configured.context("configure the container's link")?;
        Ok(ipv6)
    }

    /// Sets what must be set while the link is down, and IPv6 where it is needed.
    ///
    /// `arp_notify` and `ndisc_notify` make the kernel announce addresses when the MAC is
    /// set; `keep_addr_on_down` keeps IPv6 addresses through a link that flaps. None of
    /// them is worth a container without network: what cannot be set is told.
    fn set_sysctls(&self, dad: Dad, needed: Ipv6) -> anyhow::Result<Ipv6> {
        let accept_dad = match dad {
            Dad::Perform => "1",
            Dad::Skip => "0",
        };
        let wishes = [
            (Sysctl::ipv4(self.interface, "arp_notify"), "1"),
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
            let disabled = Sysctl::ipv6(self.interface, "disable_ipv6");
            if needed == Ipv6::On {
                Sysctl::ipv6("lo", "disable_ipv6").ensure("0")?;
                disabled.ensure("0")?;
                return Ok(Ipv6::On);
            }
            match disabled.read() {
                Ok(value) if value == "0" => Ok(Ipv6::On),
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(Ipv6::Off),
            }
        })?
    }

    /// Waits until the link passes traffic and has its IPv6 addresses, the link-local one
    /// included, unless IPv6 is off; returns the link as it is then.
    pub fn wait_until_ready(&mut self, link: &Link, dad: Dad, ipv6: Ipv6) -> anyhow::Result<Link> {
        let up = format!("the container's {} to come up", self.interface);
        let wait = Wait {
            link: link.index,
            what: &up,
            deadline: DEADLINE,
        };
        let link = self
            .monitor
            .wait_for_link(&self.connection, &wait, |link| link.is_operational)?;
        if ipv6 == Ipv6::Off {
            return Ok(link);
        }
        let settled = format!("the IPv6 addresses of the container's {}", self.interface);
        let wait = Wait {
            what: &settled,
            ..wait
        };
        let is_settled = |addresses: &[Address]| {
            let is_pending =
                |it: &Address| it.is_tentative && dad == Dad::Perform && !it.is_duplicate;
            addresses.iter().any(|it| it.is_link_local) && !addresses.iter().any(is_pending)
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
            let is_there = routes.iter().any(|it| {
                it.destination == wanted.destination
                    && it.gateway == wanted.gateway
                    && it.links().any(|index| index == link.index)
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
        priority: route.priority,
        table: route.table,
        scope: route.scope,
    }
}

/// The kernel takes a millisecond or two to bring a pair up, duplicate address detection
/// one to two seconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
