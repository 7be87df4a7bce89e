//! ADD: records the sandbox, makes the link, obtains the lease and configures the link.

use anyhow::ensure;
use cni::result::Dns;
use cni::{AddRequest, AddResult, Answer, Answered, Error, Undo};
use netlink::{Connection, Dad, Link, LinkChange, MacAddress, NewKind, NewLink, Request};
use netns::Netns;

use super::desired::{
    Addresses, Kind, Mac, Parent, Place, SandboxLink, Single, derived_mac, first_name,
};
use super::made::{Made, MadeLink};
use super::siblings;
use super::tap::NewTap;
use crate::lease::{Lease, uses_link};
use crate::sandbox::Sandbox;
use crate::{Addressing, Container, Gateway, Presence, Witness, interface, placed};

/// Makes the link in the sandbox, configures it, and returns the result. If a step fails, the
/// rollback removes the link, the record and the lease.
///
/// # Errors
/// - Codes 2, 4 and 7: the configuration, an argument or the lease is invalid.
/// - Other codes: a step failed.
pub fn add<P: SandboxLink>(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let desired = P::parse(&request.network, &request.args()?)?;
    let lease = Lease::prepare(&request.network, Gateway::None)?;
    expect_addresses(&desired, &lease, request)?;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    cni::step("look into the sandbox");
    let (host, made) = (Connection::open()?, Made::default());
    let add = Add {
        desired: &desired,
        request,
        namespace: &namespace,
        host: &host,
        made: &made,
        owner: request.attachment.owner(),
    };
    let mut sandbox = Sandbox::open(&namespace, &request.attachment.interface)?;
    add.expect_nothing_there(&sandbox)?;
    let parent = add.find_parent(&sandbox)?;
    let mut undo = Undo::default();
    undo.push("remove the record", || add.remove_record());
    let uses_link = uses_link(&request.network)?;
    if !uses_link {
        undo.push("release the lease", || add.release_lease());
    }
    undo.push("delete the link", || add.delete_link());
    if uses_link {
        undo.push("release the lease", || add.release_lease());
    }
    let link = add.make(&sandbox, parent.as_ref())?;
    let result = add.connect(&mut sandbox, &link, lease)?;
    Ok(answer.give_and_keep(&result, undo)?)
}

/// Checks that the addresses which the configuration requires come from somewhere.
fn expect_addresses(
    desired: &Single,
    lease: &Lease<'_>,
    request: &AddRequest,
) -> Result<(), Error> {
    let mut previous = request.prev_result.iter().flat_map(|it| &it.ips);
    let has_some = match desired.addresses {
        Addresses::Optional => true,
        Addresses::Required => false,
        Addresses::OrPrevious => previous.next().is_some(),
    };
    if has_some || !matches!(lease, Lease::None) {
        return Ok(());
    }
    let reason = "required, because the interface needs addresses; name an IPAM plugin";
    Err(Error::invalid("ipam", reason))
}

struct Add<'a> {
    desired: &'a Single,
    request: &'a AddRequest,
    namespace: &'a Netns,
    host: &'a Connection,
    made: &'a Made,
    /// The attachment's tag.
    owner: String,
}

impl Add<'_> {
    fn expect_nothing_there(&self, sandbox: &Sandbox<'_>) -> anyhow::Result<()> {
        let Some(link) = sandbox.find_link()? else {
            return Ok(());
        };
        let attachment = &self.request.attachment;
        let is_own = Witness::find(&self.owner)?.is_some_and(|it| it.netns == self.request.netns);
        ensure!(
            !is_own,
            "{attachment} is attached already by {}; DEL it first",
            link.name
        );
        anyhow::bail!(
            "the sandbox has an interface {} already: delete it, or choose another name (CNI_IFNAME)",
            link.name
        )
    }

    /// Checks that no earlier ADD made the link in another sandbox, which exists: `witness` replaces
    /// the record that proves this. Notes the record of a sandbox that may exist, for the rollback.
    fn expect_nothing_elsewhere(&self, witness: &Witness) -> anyhow::Result<()> {
        let earlier = Witness::find(&self.owner)?.filter(|it| !it.is_same_sandbox(witness));
        let earlier = earlier.map(|it| (it.presence(), it));
        if let Some((Presence::Present(..), it)) = &earlier {
            anyhow::bail!(
                "{} is attached already in the sandbox {}; DEL it first",
                self.request.attachment,
                it.netns.display()
            );
        }
        let left = earlier.filter(|it| it.0.reason().is_some());
        self.made.earlier.replace(left.map(|it| it.1));
        Ok(())
    }

    /// Returns the link below, and checks that it can carry the MTU.
    fn find_parent(&self, sandbox: &Sandbox<'_>) -> anyhow::Result<Option<Link>> {
        let places = [self.host, sandbox.connection()];
        let prev = self.request.prev_result.as_ref();
        let parent = self.desired.find_parent(places, prev)?;
        if let (Some(parent), Some(mtu)) = (&parent, self.desired.mtu)
            && mtu > parent.mtu
        {
            let (name, most) = (&parent.name, parent.mtu);
            let reason = format!("{mtu} is more than the {most} bytes of {name}, the link below");
            anyhow::bail!(Error::invalid("mtu", reason));
        }
        Ok(parent)
    }

    /// Records the sandbox and makes the link, down.
    fn make(&self, sandbox: &Sandbox<'_>, parent: Option<&Link>) -> anyhow::Result<Link> {
        cni::step("record the sandbox");
        let words = self.desired.words(parent);
        let witness = Witness::new(self.namespace, sandbox.connection(), words)?
            .numbered(self.host, self.namespace)?;
        self.expect_nothing_elsewhere(&witness)?;
        if let Kind::Netlink(kind @ NewKind::Ipvlan(_)) = self.desired.kind
            && let Some(parent) = parent.zip(self.desired.parent.as_ref().map(|it| it.place))
        {
            siblings::expect_mode((&witness, &self.owner), &kind.made(), parent)?;
        }
        self.made.record.set(true);
        witness.write(&self.owner)?;
        cni::step("make the link");
        let name = self.request.attachment.interface.as_str();
        let mac = match self.desired.mac {
            Mac::Asked(mac) => Some(mac),
            Mac::Derived => Some(derived_mac(&self.request.attachment)),
            Mac::OfParent => None,
        };
        let kind = match &self.desired.kind {
            Kind::Netlink(kind) => *kind,
            Kind::Tap(tap) => {
                let link = self.make_tap(sandbox.connection(), tap, mac)?;
                witness.write(&self.owner)?;
                return Ok(link);
            }
        };
        let new = NewLink {
            parent: parent.map(|it| it.index),
            mac,
            mtu: self.desired.mtu,
            ..NewLink::of(name, kind)
        };
        let made = self.make_at(sandbox, new);
        made.map_err(|error| self.explain(error, &witness.link))?;
        // The rollback of a concurrent ADD, which this ADD preceded, may have removed the record.
        witness.write(&self.owner)?;
        let alias = LinkChange::Alias(&self.owner);
        Ok(sandbox.connection().change_link(name, &[alias])?)
    }

    /// Makes a tap link and sets what netlink sets. If ADD is killed meanwhile, the kernel removes the
    /// link, unless another program has opened a queue.
    fn make_tap(
        &self,
        inside: &Connection,
        tap: &NewTap,
        mac: Option<MacAddress>,
    ) -> anyhow::Result<Link> {
        let name = self.request.attachment.interface.as_str();
        let mut changes = vec![LinkChange::Alias(&self.owner)];
        changes.extend(tap.find_master(inside)?);
        changes.extend(mac.map(LinkChange::Mac));
        changes.extend(self.desired.mtu.map(LinkChange::Mtu));
        let device = self.namespace.run(|| tap.create(name))??;
        let made = tap.complete(&device, inside, (name, &changes));
        let index = match &made {
            Ok(link) => Some(link.index),
            // As long as `device` exists, a link of this name is this one.
            Err(_) => inside.find_link(name).ok().flatten().map(|it| it.index),
        };
        self.made.link.replace(index.map(MadeLink::Numbered));
        made
    }

    /// Makes the link at the place of its parent. If the name is taken on the host, the link gets
    /// another name first, because some kernels look for it there, too.
    fn make_at(&self, sandbox: &Sandbox<'_>, new: NewLink<'_>) -> Result<(), netlink::Error> {
        let inside = sandbox.connection();
        let is_on_host = |it: &Parent| it.place == Place::Host;
        if !self.desired.parent.as_ref().is_some_and(is_on_host) {
            return self.made.note(new.name, inside.add_link(&new));
        }
        let new = NewLink {
            namespace: Some(self.namespace),
            ..new
        };
        match self.host.add_link(&new) {
            Err(error) if error.is_already_exists() && self.host.find_link(new.name)?.is_some() => {
                let name = first_name(&self.request.attachment);
                self.made
                    .note(&name, self.host.add_link(&NewLink { name: &name, ..new }))?;
                let link = inside.link(&name)?;
                self.made.link.replace(Some(MadeLink::Numbered(link.index)));
                inside.execute([Request::rename_link(link.index, new.name, None)])
            }
            made => self.made.note(new.name, made),
        }
    }

    /// Names the owner of the VLAN: a parent has one link of each VLAN.
    fn explain(&self, error: netlink::Error, words: &str) -> anyhow::Error {
        let Kind::Netlink(NewKind::Vlan(_)) = self.desired.kind else {
            return anyhow::Error::from(error).context(format!("make {words}"));
        };
        if !error.is_already_exists() {
            return error.into();
        }
        let owner = siblings::owner_of(words, &self.owner);
        let owner = owner.unwrap_or_else(|| "another program".to_owned());
        anyhow::anyhow!(
            "{words} belongs to {owner}, and a link has one link of each VLAN; for several \
             containers, make the VLAN link on the host and use macvlan on it, or a VLAN link of \
             each container's own interface (linkInContainer)"
        )
    }

    fn connect(
        &self,
        sandbox: &mut Sandbox<'_>,
        link: &Link,
        lease: Lease<'_>,
    ) -> anyhow::Result<AddResult> {
        cni::step("lease addresses");
        let is_up_first = matches!(lease, Lease::AfterLink(_));
        let leased = self.lease(sandbox, link, lease)?;
        let addressing = Addressing::of_lease(leased.as_ref(), link.mtu)?;
        cni::step("configure the sandbox");
        let container = self.container(addressing);
        sandbox
            .configure(link, &container)
            .map_err(|it| in_use(it, link))?;
        cni::step("wait for IPv6");
        sandbox.wait_until_ready(link, &container)?;
        // The kernel announces the addresses that a link has when it comes up.
        let has_own_mac = self.desired.mac != Mac::OfParent;
        if let Some(mac) = link.mac.filter(|_| is_up_first && has_own_mac) {
            cni::step("announce the addresses");
            sandbox.announce(mac)?;
        }
        Ok(self.result(link, container.addressing, leased.unwrap_or_default()))
    }

    /// Returns the lease. Without an IPAM plugin, returns the addresses in `prevResult` if this plugin
    /// takes them. An IPAM plugin that may use the link finds it up.
    fn lease(
        &self,
        sandbox: &mut Sandbox<'_>,
        link: &Link,
        lease: Lease<'_>,
    ) -> anyhow::Result<Option<AddResult>> {
        match lease {
            Lease::None => {
                let takes = self.desired.addresses == Addresses::OrPrevious;
                return Ok(self.request.prev_result.clone().filter(|_| takes));
            }
            Lease::BeforeLink(_) => {}
            Lease::AfterLink(_) => {
                let early = self.container(Addressing::default());
                let up = sandbox.bring_up(link, &early);
                up.map_err(|it| in_use(it, link))?;
            }
        }
        Ok(self.made.lease.obtain(lease)?)
    }

    fn container(&self, addressing: Addressing) -> Container {
        Container {
            dad: match self.desired.parent {
                Some(_) => Dad::Perform,
                None => Dad::Skip,
            },
            addressing,
            // `accept_ra` too: the routers of the parent's network may be the container's.
            ..Container::default()
        }
    }

    /// Returns the result: what earlier plugins of the chain have, and the link with its addresses.
    fn result(&self, link: &Link, addressing: Addressing, lease: AddResult) -> AddResult {
        let takes = self.desired.addresses == Addresses::OrPrevious;
        let mut result = self.request.prev_result.clone().unwrap_or_default();
        if takes && matches!(self.request.network.ipam_type(), Ok(None)) {
            result.ips.clear();
            result.routes.clear();
        }
        let place = result.interfaces.len();
        let mut made = interface(link);
        made.sandbox = Some(self.request.netns.to_string_lossy().into_owned());
        result.interfaces.push(made);
        result.ips.extend(placed(addressing.ips, place));
        result.routes.extend(addressing.routes);
        let dns = self.desired.dns.clone().unwrap_or(lease.dns);
        if dns != Dns::default() {
            result.dns = dns;
        }
        result.extra.extend(lease.extra);
        result
    }

    fn delete_link(&self) -> anyhow::Result<()> {
        let made = self.made.link.borrow();
        let Some(made) = made.as_ref() else {
            return Ok(());
        };
        let sandbox = Connection::open_in(self.namespace)?;
        let link = made.find(&sandbox)?;
        match link.filter(|it| self.desired.is_kind(&it.kind)) {
            Some(link) => Ok(sandbox.remove_link(&link)?),
            None => Ok(()),
        }
    }

    fn release_lease(&self) -> anyhow::Result<()> {
        self.made.lease.release(&self.request.network, || {
            ensure!(
                uses_link(&self.request.network)?
                    || self.made.link.borrow().is_none()
                    || !self.has_link()?,
                "the link still exists, so the lease stays"
            );
            Ok(())
        })
    }

    /// Removes the record, unless the sandbox has the link: then a concurrent ADD, or this one, made
    /// it.
    fn remove_record(&self) -> anyhow::Result<()> {
        let record = Witness::find(&self.owner)?;
        if !self.made.record.get() || self.has_link()? {
            return Ok(());
        }
        match self.made.earlier.take() {
            Some(earlier) => earlier.write(&self.owner)?,
            None => Witness::remove(&self.owner)?,
        }
        match record {
            Some(record) if self.has_link()? => record.write(&self.owner),
            _ => Ok(()),
        }
    }

    fn has_link(&self) -> anyhow::Result<bool> {
        let sandbox = Connection::open_in(self.namespace)?;
        let found = sandbox.find_link(self.request.attachment.interface.as_str())?;
        Ok(found.is_some())
    }
}

/// Explains why a link cannot be brought up, if another link has its MAC.
fn in_use(error: anyhow::Error, link: &Link) -> anyhow::Error {
    let is_used = |it: &netlink::Error| it.is_mac_in_use();
    if error.downcast_ref().is_some_and(is_used) {
        let mac = link.mac.map(|it| it.to_string()).unwrap_or_default();
        return error.context(format!(
            "another link of the same parent, or the parent, has the MAC {mac} of {}",
            link.name
        ));
    }
    error
}
