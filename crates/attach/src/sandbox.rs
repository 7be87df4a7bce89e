//! The container's end of the veth pair, inside the sandbox.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use cni::result::IpConfig;
use cni::{Error, InterfaceName, note_failure};
use netlink::{
    Address, Connection, Dad, Link, LinkChange, LinkLocalOrigin, MacAddress, Monitor, NewRoute,
    Request, Wait, network_of,
};
use netns::{Netns, Sysctl};

use crate::addressing::{MAIN_TABLE, need_ipv6};
use crate::hardening::{CONTAINER_EXPOSED, report_read_only};
use crate::{Addressing, Container, Gateway, harden, routed};

mod routes;

use routes::{after, wanted_routes};

/// An open sandbox: connections to the kernel inside it, and the name of the container's link.
pub struct Sandbox<'a> {
    namespace: &'a Netns,
    connection: Connection,
    monitor: Monitor,
    interface: &'a str,
    link_local: LinkLocal,
}

/// State of the IPv6 link-local address of the container's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkLocal {
    /// No link-local address: IPv6 is off, or nothing is configured yet.
    None,
    /// No link-local address: the sandbox's `addr_gen_mode` is 1, or 2 without a secret.
    Unwanted,
    /// ADD has added an address that is usable at once; the kernel must not generate another one.
    Given,
    /// The kernel generates an address when the veth pair comes up, or when IPv6 is enabled on a
    /// link that is up.
    Awaited,
}

impl<'a> Sandbox<'a> {
    /// Opens connections to the kernel in the sandbox's namespace.
    ///
    /// # Errors
    /// Code 4: the namespace cannot be entered.
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

    /// Returns the connection to the kernel in the sandbox.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the container's link, or `None` if it does not exist.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn find_link(&self) -> anyhow::Result<Option<Link>> {
        Ok(self.connection.find_link(self.interface)?)
    }

    /// Brings the container's link up, before an IPAM plugin such as `dhcp` leases addresses over
    /// it. Returns the changed link.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn bring_up(&mut self, link: &Link, desired: &Container) -> anyhow::Result<Link> {
        let requests = self.prepare(link, desired)?;
        let connection = &self.connection;
        let prepared = connection.execute(requests);
        prepared
            .and_then(|()| connection.change_link(self.interface, &[LinkChange::Up]))
            .context("bring up the container's link")
    }

    /// Adds the addresses and routes of `desired` to the container's link and brings it up.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn configure(&mut self, link: &Link, desired: &Container) -> anyhow::Result<()> {
        let (addressing, dad) = (&desired.addressing, desired.dad);
        let mut requests = self.prepare(link, desired)?;
        let add = match addressing.mode {
            Gateway::HostEnd => routed::add_container_address,
            _ => Request::add_address,
        };
        let ips = addressing.ips.iter();
        requests.extend(ips.map(|ip| add(link.index, ip.address, dad)));
        requests.push(Request::change_link(self.interface, &LinkChange::Up));
        let first = requests.len();
        let routes = wanted_routes(addressing, link);
        requests.extend(routes.iter().map(Request::add_route));
        let configured = || {
            let mut outcomes = self.connection.attempt(&requests)?;
            let added = outcomes.split_off(first);
            outcomes.into_iter().collect::<Result<(), _>>()?;
            self.add_after_others(&routes, added)
        };
        configured().context("configure the container's link")
    }

    /// Adds those of `routes` that the kernel refused because the sandbox has another IPv6 route to
    /// the same destination, such as the default route of another network. Gives them a higher
    /// metric, so the existing route wins, as for IPv4. `added` are the outcomes of the first
    /// attempt.
    fn add_after_others(
        &self,
        routes: &[NewRoute],
        added: Vec<Result<(), netlink::Error>>,
    ) -> Result<(), netlink::Error> {
        for (route, outcome) in routes.iter().zip(added) {
            let Err(error) = outcome else { continue };
            if !error.is_already_exists() || route.destination.is_ipv4() {
                return Err(error);
            }
            let after = after(route, &self.connection.routes()?);
            self.connection.execute([Request::add_route(&after)])?;
        }
        Ok(())
    }

    /// Prepares the link for the addresses of `desired`: sets sysctls, and returns requests that
    /// the caller executes before it adds the addresses:
    ///
    /// - The first one makes the kernel send gratuitous ARP when the MAC of the link is set.
    /// - The others, if any, add an IPv6 link-local address that is usable at once. The kernel
    ///   would generate this address only after the pair is up.
    fn prepare(&mut self, link: &Link, desired: &Container) -> anyhow::Result<Vec<Request>> {
        let (dad, ips) = (desired.dad, &desired.addressing.ips);
        let mut requests = vec![Request::change_link(self.interface, &LinkChange::ArpNotify)];
        self.set_sysctls(link, desired)?;
        let is_on =
            |it: &netlink::Ipv6| need_ipv6(ips) || desired.awaits_link_local && !it.is_disabled;
        let (Some(ipv6), LinkLocal::None) = (link.ipv6.filter(is_on), self.link_local) else {
            return Ok(requests);
        };
        self.link_local = match (ipv6.link_local, link.mac) {
            (LinkLocalOrigin::None, _) => LinkLocal::Unwanted,
            (LinkLocalOrigin::Secret, _) if !self.has_secret()? => LinkLocal::Unwanted,
            (LinkLocalOrigin::Mac, Some(mac)) if dad == Dad::Skip && !link.is_up => {
                requests.extend(routed::link_local(link, mac)?);
                LinkLocal::Given
            }
            _ => LinkLocal::Awaited,
        };
        Ok(requests)
    }

    /// Returns whether there is a secret from which the kernel derives a link-local address.
    fn has_secret(&self) -> Result<bool, netns::Error> {
        let names = [self.interface, "default"];
        let is_set = |name: &str| Sysctl::ipv6(name, "stable_secret").read().is_ok();
        self.namespace.run(|| names.into_iter().any(is_set))
    }

    /// Sets the IPv6 sysctls of the link, as far as `desired` needs that: the lookup of sysctls
    /// takes time. Enables IPv6 if `desired` has an IPv6 address, and sets `accept_ra` and
    /// `autoconf` first.
    ///
    /// With `ndisc_notify`, the kernel announces IPv6 addresses when the MAC is set. With
    /// `keep_addr_on_down`, the kernel keeps these addresses when the link goes down and up again.
    /// `accept_dad` turns duplicate address detection on or off. With `enhanced_dad` (RFC 7527),
    /// the kernel recognises its own solicitations, which a port with hairpin mode sends back. A
    /// failure to set one of these sysctls is only reported on standard error, because the
    /// container works without them.
    pub(crate) fn set_sysctls(&self, link: &Link, desired: &Container) -> anyhow::Result<()> {
        let (dad, addressing) = (desired.dad, &desired.addressing);
        let needs_ipv6 = need_ipv6(&addressing.ips);
        let advertisements = self.advertisements(link, desired);
        if !needs_ipv6 && dad == Dad::Skip && advertisements.is_empty() {
            return Ok(());
        }
        let accept_dad = match dad {
            Dad::Perform => "1",
            Dad::Skip => "0",
        };
        let mut sysctls = vec![
            (Sysctl::ipv6(self.interface, "ndisc_notify"), "1"),
            (Sysctl::ipv6(self.interface, "keep_addr_on_down"), "1"),
            (Sysctl::ipv6(self.interface, "accept_dad"), accept_dad),
        ];
        if dad == Dad::Perform {
            sysctls.push((Sysctl::ipv6(self.interface, "enhanced_dad"), "1"));
        }
        let sysctls = sysctls.iter().filter(|_| needs_ipv6 || dad == Dad::Perform);
        self.namespace.run(|| {
            for (sysctl, was, value) in &advertisements {
                let unset = harden(sysctl.change(was, value), CONTAINER_EXPOSED)?;
                report_read_only(unset.as_slice(), addressing)?;
            }
            for (sysctl, value) in sysctls {
                let set = sysctl.ensure_if_present(value);
                note_failure(set.context("in the sandbox"));
            }
            if needs_ipv6 {
                Sysctl::ipv6("lo", "disable_ipv6").ensure("0")?;
                Sysctl::ipv6(self.interface, "disable_ipv6").ensure("0")?;
            }
            Ok(())
        })?
    }

    /// Returns the sysctls for router advertisements whose values differ from `desired`, with their
    /// values and the desired values.
    fn advertisements(
        &self,
        link: &Link,
        desired: &Container,
    ) -> Vec<(Sysctl, String, &'static str)> {
        let (Some(ipv6), Some(accepts)) = (link.ipv6, desired.accept_ra) else {
            return Vec::new();
        };
        let value = if accepts { "1" } else { "0" };
        let sysctls = [("accept_ra", ipv6.accept_ra), ("autoconf", ipv6.autoconf)];
        let differing = sysctls
            .into_iter()
            .filter(|(_, was)| (*was != 0) != accepts);
        let of_link = differing
            .map(|(name, was)| (Sysctl::ipv6(self.interface, name), was.to_string(), value));
        of_link.collect()
    }

    /// Waits until the link passes traffic and its IPv6 addresses are usable, including the
    /// link-local address if the link gets one. Returns the link as it is after the wait.
    ///
    /// Does not wait for a link that has no carrier because its parent has none
    /// ([`Link::is_settled`]): the kernel makes the addresses usable when the parent comes up.
    ///
    /// # Errors
    /// Another host has one of the addresses, or the wait takes too long.
    pub fn wait_until_ready(&mut self, link: &Link, desired: &Container) -> anyhow::Result<Link> {
        let up = format!("the container's {} to come up", self.interface);
        let up = wait(link, &up);
        let connection = &self.connection;
        let link = self
            .monitor
            .wait_for_link(connection, &up, Link::is_settled)?;
        if self.link_local == LinkLocal::Given {
            self.generate_link_local_again()?;
        }
        if !link.is_operational {
            return Ok(link);
        }
        self.wait_for_addresses(&link, desired.dad)?;
        let ips = &desired.addressing.ips;
        let is_given = self.link_local == LinkLocal::Given && need_ipv6(ips);
        let link_local = link.mac.filter(|_| is_given);
        let link_local = link_local.map(|mac| mac.link_local().into());
        let added = ips.iter().map(|ip| ip.address.ip()).chain(link_local);
        let added: Vec<_> = added.collect();
        wait_for_local_routes(&self.connection, &mut self.monitor, &link, &added)?;
        Ok(link)
    }

    /// Switches the generation of link-local addresses on again, after ADD itself has added one.
    /// The kernel deletes that address when the link goes down, and must generate a new one when
    /// the link comes up.
    fn generate_link_local_again(&self) -> Result<(), netlink::Error> {
        let again = LinkChange::LinkLocal(LinkLocalOrigin::Mac);
        let again = Request::change_link(self.interface, &again);
        self.connection.execute([again])
    }

    /// Waits for the end of duplicate address detection and, unless the sandbox wants none, for the
    /// kernel's link-local address. Does not wait if IPv6 is off or ADD added that address.
    ///
    /// # Errors
    /// Another host on the network uses one of the addresses, or the wait takes more than ten
    /// seconds.
    fn wait_for_addresses(&mut self, link: &Link, dad: Dad) -> anyhow::Result<()> {
        let link_local = self.link_local;
        if matches!(link_local, LinkLocal::None | LinkLocal::Given) {
            return Ok(());
        }
        let settled = format!("the IPv6 addresses of the container's {}", self.interface);
        let is_settled = |addresses: &[Address]| {
            let is_pending =
                |it: &Address| it.is_tentative && dad == Dad::Perform && !it.is_duplicate;
            let has_link_local = addresses.iter().any(|it| it.is_link_local);
            (has_link_local || link_local == LinkLocal::Unwanted)
                && !addresses.iter().any(is_pending)
        };
        let addresses =
            self.monitor
                .wait_for_addresses(&self.connection, &wait(link, &settled), is_settled)?;
        if let Some(Address { address, .. }) = addresses.iter().find(|it| it.is_duplicate) {
            anyhow::bail!("{address} is in use by another host on the network");
        }
        Ok(())
    }

    /// Announces to the neighbours that the link's addresses have `mac`. Sets the MAC of the link
    /// to `mac`, which it already has: the kernel then sends gratuitous ARP and unsolicited
    /// neighbour advertisements.
    pub(crate) fn announce(&self, mac: MacAddress) -> anyhow::Result<()> {
        let request = Request::change_link(self.interface, &LinkChange::Mac(mac));
        self.connection
            .execute(vec![request])
            .context("announce the container's addresses")
    }

    /// Returns a message for the operator for each address and route of `addressing` that the
    /// sandbox lacks.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn differences(&self, link: &Link, addressing: &Addressing) -> anyhow::Result<Vec<String>> {
        let name = &link.name;
        let addresses = self.connection.addresses(link.index)?;
        let is_missing = |ip: &&IpConfig| addresses.iter().all(|it| it.address != ip.address);
        let missing = addressing.ips.iter().filter(is_missing);
        let missing = missing.map(|ip| format!("{name} lacks address {}", ip.address));
        let mut differences: Vec<_> = missing.collect();
        let routes = self.connection.routes()?;
        for wanted in wanted_routes(addressing, link) {
            let destination = network_of(wanted.destination);
            let is_wanted = |route: &netlink::Route| {
                route.destination == destination
                    && route.leads_by(link.index, wanted.gateway)
                    // Later plugins move routes out of the main table.
                    && wanted.table.is_none_or(|it| it == MAIN_TABLE || route.table == it)
                    && (wanted.priority.is_none()
                        || route.priority == wanted.priority
                        // See `after`.
                        || destination.is_ipv6() && route.priority > wanted.priority)
            };
            if !routes.iter().any(is_wanted) {
                differences.push(format!("{name} lacks the route to {}", wanted.destination));
            }
        }
        Ok(differences)
    }
}

/// Waits until the kernel delivers packets to the IPv6 addresses among `addresses`, which this ADD
/// has added to `link`.
pub(crate) fn wait_for_local_routes(
    connection: &Connection,
    monitor: &mut Monitor,
    link: &Link,
    addresses: &[IpAddr],
) -> anyhow::Result<()> {
    let what = format!("the local routes of the IPv6 addresses of {}", link.name);
    Ok(monitor.wait_for_local_routes(connection, &wait(link, &what), addresses)?)
}

/// Returns the description of a wait for `link`. `what` names the awaited event in the error. The
/// limit of ten seconds is ample: a veth pair comes up in one or two milliseconds, and duplicate
/// address detection takes one to two seconds.
pub(crate) fn wait<'a>(link: &Link, what: &'a str) -> Wait<'a> {
    Wait {
        link: link.index,
        what,
        deadline: Duration::from_secs(10),
    }
}

#[cfg(test)]
mod tests;
