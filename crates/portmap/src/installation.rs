//! Installs the ports of an attachment, and removes ports that only an earlier ADD of the
//! attachment installed.
//!
//! The attachment's record is a file that lists its elements in `nf_tables`. Before a change, the
//! record lists both the elements that exist and those that the change adds. So DEL finds all
//! elements even if an ADD is killed at any point.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use anyhow::Context as _;
use attach::{Writing, coded};
use cni::{AddRequest, Attachment, Error, FirstFormat, note, note_failure};
use netlink::Link;
use netns::Netns;
use nft::{Change, Connection, Element, HostPort, Updated};

use crate::decision::{Refusal, decide, held};
use crate::element::host_port;
use crate::liveness::take_over_if_gone;
use crate::plan::Plan;
use crate::record::{self, Identity, Record};
use crate::table::{self, DesiredElements};
use crate::wait::Wait;
use crate::{LocalhostGuard, del, firewall, guard, handover, liveness, localnet, standby};

/// The desired state of an attachment's ports, and the earlier state for the rollback.
pub(crate) struct Installation<'a> {
    attachment: &'a Attachment,
    desired: DesiredElements,
    /// The attachment's record as it will be after success.
    record: Record,
    host: netlink::Connection,
    /// The link of the host through which packets from 127.0.0.1 reach the container; `None` if the
    /// container gets no such packets.
    localnet: Option<Link>,
    writing: Writing,
    /// The record that an earlier ADD of the attachment wrote; `None` if there was none. If the
    /// record is unreadable, or `nf_tables` has an element of the attachment that no record lists,
    /// this is a new record of the elements in `nf_tables`.
    earlier: Option<Record>,
    /// The change of `nf_tables` that [`Self::attempt`] last decided; `None` if it decided none.
    decided: Option<Change>,
    /// Tags of attachments to which this one leaves elements that it wants: attachments of the same
    /// container that already forward such a port and, for RELOAD, attachments whose records list
    /// this one as displaced. The DEL of such an attachment passes the elements on to this one.
    behind: BTreeSet<String>,
    /// Tags of attachments from which this one takes elements. The record already lists them as
    /// displaced.
    displacing: BTreeSet<String>,
}

impl<'a> Installation<'a> {
    /// Reads the state of the sandbox and the record of an earlier ADD. Installs nothing yet.
    ///
    /// # Errors
    /// - Code 4: the sandbox does not exist.
    /// - Code 100: the kernel refuses a request. Or `writing` is [`Writing::Existing`], and the
    ///   attachment has no readable record.
    pub fn new(request: &'a AddRequest, plan: &Plan, writing: Writing) -> anyhow::Result<Self> {
        let attachment = &request.attachment;
        let sandbox = Netns::open(&request.netns).map_err(Error::sandbox)?;
        let host = netlink::Connection::open()?;
        let host_link = liveness::host_link(&host, request.chained()?, &sandbox)?;
        let links = localnet::own_links(&host, &plan.pods(), (&attachment.owner(), host_link))?;
        let desired = table::desired(plan, &links, attachment.owner());
        let localnet = localnet::link(&links, plan).cloned();
        let identity = Identity::of(&request.netns)
            .with_context(|| format!("look at CNI_NETNS {}", request.netns.display()))?;
        let mut record = Record {
            format: FirstFormat,
            netns: request.netns.clone(),
            identity,
            interface: attachment.interface.as_str().to_owned(),
            host_link,
            localnet: localnet.as_ref().map(|it| it.index),
            rules_alone: plan.config.localhost_guard == LocalhostGuard::Rules,
            former_localnets: Vec::new(),
            addresses: plan.pods(),
            elements: desired.elements.clone(),
            displaced: Vec::new(),
            conditions: plan.config.conditions.clone(),
        };
        let earlier = match writing {
            Writing::All => earlier(&record, &desired)?,
            // This is RELOAD, which restores the rules of an attachment only if it has a record.
            Writing::Existing => Some(Record::find(attachment)?),
        };
        record.displaced = earlier.iter().flat_map(|it| it.displaced.clone()).collect();
        Ok(Self {
            attachment,
            host,
            localnet,
            desired,
            record,
            writing,
            earlier,
            decided: None,
            behind: BTreeSet::new(),
            displacing: BTreeSet::new(),
        })
    }

    /// Installs the ports in one transaction, and takes over ports of attachments that have ended.
    /// If a live attachment holds a port, the function waits until that attachment's DEL has
    /// released the port, but at most for `patience`.
    ///
    /// If a port of 127.0.0.1 is forwarded with masquerading, the function then permits packets
    /// from 127.0.0.1 to leave the host. This step is the last because it needs the rules that keep
    /// other hosts off 127.0.0.0/8.
    ///
    /// Returns the ports that may have conntrack entries with an old destination. The caller passes
    /// these ports to [`Self::forget`].
    ///
    /// # Errors
    /// - Code 11: a live attachment holds a port, or other processes keep changing the rules.
    /// - Code 100: the kernel refuses a request.
    pub fn install(&mut self, patience: Duration) -> anyhow::Result<Vec<HostPort>> {
        cni::step("write the record");
        let connection = Connection::open()?;
        self.write_down()?;
        cni::step("forward the ports");
        let updated = self.forward(&connection, Wait::new(patience))?;
        updated.warning(&self.desired.table).iter().for_each(note);
        if let Some(link) = &self.localnet {
            self.enable_route_localnet(&connection, link)
                .context("forward ports of 127.0.0.1, which snat: false does not need")?;
        }
        Ok(match updated {
            Updated::Nothing => Vec::new(),
            Updated::Rules | Updated::Table => self.connectionless_ports(),
        })
    }

    /// Rolls this ADD or RELOAD back: restores the state before it. If the attachment had no record
    /// of an earlier ADD, removes everything of the attachment.
    ///
    /// # Errors
    /// The kernel refuses a request, or a file cannot be written or removed. The record then still
    /// lists all elements that the attachment may have.
    pub fn put_back(&self) -> anyhow::Result<()> {
        let Some(earlier) = &self.earlier else {
            // The attachment may have elements: this ADD may have carried out its change, or the
            // DEL of another attachment may have passed a port on to this attachment.
            if self.decided.is_some() || !self.behind.is_empty() {
                return del::remove(self.attachment);
            }
            // The attachment has no elements, so only its record is left. This ADD may have failed
            // because the kernel refuses requests, so the plugin sends no request here.
            return record::files().retire(&self.desired.owner).remove();
        };
        if let Some(Change { delete, .. }) = &self.decided {
            self.restore(delete).map_err(coded)?;
            self.forget(&self.connectionless_ports());
        }
        self.release_all_but(earlier.localnet)?;
        earlier.write(&self.desired.owner, self.writing)
    }

    /// Removes resources that only an earlier ADD needed, such as chains of conditions. They
    /// existed until now because a rollback would have needed them. If a step fails, the function
    /// reports the failure on standard error, and the remaining resources stay until DEL.
    pub fn finish(&self) {
        if self.everything() == self.record {
            return;
        }
        let finish = || {
            let chains = Connection::open()?.delete_chains_of(&self.desired.table, self.had());
            chains.map_err(coded)?;
            self.release_all_but(self.record.localnet)?;
            self.record.write(&self.desired.owner, self.writing)
        };
        note_failure(finish().context("resources of an earlier ADD stay until DEL"));
    }

    fn enable_route_localnet(&self, connection: &Connection, link: &Link) -> anyhow::Result<()> {
        if !self.record.rules_alone {
            guard::add_policies(connection)?;
        }
        localnet::enable_route_localnet(&self.host, link, &self.desired.owner)
    }

    fn forward(&mut self, connection: &Connection, mut wait: Wait) -> anyhow::Result<Updated> {
        for _ in 0..MOST_HOLDERS {
            match self.attempt(connection) {
                Ok(updated) => return Ok(updated),
                Err(Refusal::Held { port, holder }) => {
                    self.make_way(connection, (port, &holder), &mut wait)?;
                }
                Err(Refusal::Unlisted) => {
                    let elements = owned(connection, &self.desired)?;
                    self.earlier = Some(self.record.with(elements));
                    self.write_down()?;
                }
                Err(Refusal::Displaces { owner }) => self.displace(connection, owner)?,
                Err(Refusal::Nft(error)) => return Err(coded(error)),
            }
        }
        let reason = "other containers keep taking the requested ports".to_owned();
        Err(Error::TryAgain(reason).into())
    }

    fn attempt(&mut self, connection: &Connection) -> Result<Updated, Refusal> {
        let mut decided = None;
        let updated = connection.update(&self.desired.table, || {
            decided = None;
            let change = decide(connection, &self.desired, self.had(), &self.behind)?;
            self.expect_listed(&change)?;
            decided = Some(change.clone());
            Ok(change)
        });
        self.decided = decided;
        updated
    }

    /// Resolves a conflict over `port`, which another attachment forwards with the element
    /// `holder`. The caller then makes another attempt. Returns in one of three cases:
    ///
    /// - The other attachment has ended. This function has removed its elements.
    /// - The DEL of the other attachment has released the port.
    /// - The other attachment is of the same container. This attachment now stands by: it gets the
    ///   port at the DEL of the other attachment.
    ///
    /// # Errors
    /// - Code 11: the other attachment still has the port at the deadline of `wait`.
    /// - Code 100: the kernel refuses a request, or the standby list cannot be written.
    fn make_way(
        &mut self,
        connection: &Connection,
        (port, holder): (HostPort, &Element),
        wait: &mut Wait,
    ) -> anyhow::Result<()> {
        let (owner, own) = (&holder.owner, &self.desired.owner);
        let take_over = || {
            let is_gone = take_over_if_gone(connection, owner)?;
            if is_gone {
                note!("{port} was held by {owner}, whose sandbox or interface is gone: taken over");
            }
            anyhow::Ok(is_gone)
        };
        if take_over()? {
            return Ok(());
        }
        if Attachment::is_same_container(owner, own) {
            note!("{port} is already forwarded for {owner} of the same container");
            standby::join(own)?;
            self.behind.insert(owner.clone());
            return Ok(());
        }
        let released = wait.until_released(connection, &self.desired.table, holder);
        let is_free = released.map_err(coded)? || (wait.was_needed() && take_over()?);
        if is_free {
            return Ok(());
        }
        Err(held(port, owner).into())
    }

    /// Resolves a conflict with the attachment `owner`, which has elements that masquerade clients
    /// of an address of this container. The caller then makes another attempt. There are three
    /// cases:
    ///
    /// - The other attachment has ended. This function removes everything of it.
    /// - This is RELOAD, and the record of the other attachment lists this one as displaced. RELOAD
    ///   leaves the elements to the other one, so that RELOADs of both do not take them in turns.
    /// - Otherwise, the next attempt takes the elements. This function first lists the other
    ///   attachment as displaced, so that DEL gives them back even if this process is killed.
    fn displace(&mut self, connection: &Connection, owner: String) -> anyhow::Result<()> {
        if take_over_if_gone(connection, &owner)? {
            return Ok(());
        }
        let lists_this = |it: Record| it.displaced.contains(&self.desired.owner);
        let is_behind = Record::current(&owner).is_some_and(lists_this);
        if is_behind && self.writing == Writing::Existing {
            self.behind.insert(owner);
            return Ok(());
        }
        self.record.displace(&owner);
        self.displacing.insert(owner);
        self.write_down()
    }

    /// Returns an error if `change` takes elements from another attachment that is not in
    /// `self.displacing`.
    fn expect_listed(&self, change: &Change) -> Result<(), Refusal> {
        let mut owners = change.delete.iter().map(|it| &it.owner);
        let owner = owners.find(|it| {
            let is_other = **it != self.desired.owner && Attachment::is_owner(it);
            is_other && !self.displacing.contains(*it)
        });
        let refusal = owner.cloned().map(|owner| Refusal::Displaces { owner });
        refusal.map_or(Ok(()), Err)
    }

    /// Reverts this ADD's change of `nf_tables`: removes the elements that the change added, and
    /// adds the elements in `deleted` again. `deleted` are all elements that the change deletes.
    /// Another attachment gets its elements only if it still has a record. The function works
    /// whether or not the kernel has carried out the change.
    fn restore(&self, deleted: &[Element]) -> Result<(), nft::Error> {
        let (connection, table) = (Connection::open()?, table::table());
        let is_own = |it: &&Element| it.owner == self.desired.owner;
        let others = deleted.iter().filter(|it| !is_own(it));
        let others: HashSet<_> = others.map(Element::place).collect();
        if !others.is_empty() {
            let wanted = self.desired.elements.iter();
            let taken = wanted.filter(|it| others.contains(&it.place())).cloned();
            let (taken, standing_by) = (taken.collect(), standby::owners());
            handover::remove(&connection, taken, standing_by, &self.record.displaced)?;
        }
        connection.update(&table, || {
            let own = deleted.iter().filter(is_own).cloned();
            let held = connection.still_held(&table, &self.everything().elements)?;
            Ok::<_, nft::Error>(Change::of(held, own.collect()))
        })?;
        connection.delete_chains_of(&table, &self.desired.elements)
    }

    /// Returns the tags of the attachments that get elements back when this one ends.
    pub fn displaced(&self) -> &[String] {
        &self.record.displaced
    }

    /// Deletes the conntrack entries of all connections to `ports`, because older ones would still
    /// go to the old destination.
    pub fn forget(&self, ports: &[HostPort]) {
        firewall::forget(&self.host, ports);
    }

    /// Returns the UDP ports that the change in `self.decided` adds or deletes, without duplicates.
    fn connectionless_ports(&self) -> Vec<HostPort> {
        let decided = self.decided.iter();
        let elements = decided.flat_map(|it| it.add.iter().chain(&it.delete));
        let ports: BTreeSet<_> = elements.filter_map(host_port).collect();
        let ports = ports.into_iter().filter(|it| it.is_connectionless());
        ports.collect()
    }

    /// Removes this attachment from the users of the sysctl `route_localnet` on the links of this
    /// ADD and of an earlier ADD. Resets the sysctl of a link without users. Skips the link with
    /// the index `localnet`.
    fn release_all_but(&self, localnet: Option<u32>) -> anyhow::Result<()> {
        let everything = self.everything();
        let others = everything.localnets().filter(|it| Some(*it) != localnet);
        localnet::release_links(&self.desired.owner, others)
    }

    /// Returns the elements in the record of an earlier ADD; none if there is no such record.
    fn had(&self) -> &[Element] {
        self.earlier.as_ref().map_or(&[], |it| &it.elements)
    }

    /// Returns the record with all elements and links that the attachment may have during the
    /// change: those of an earlier ADD and those of this ADD.
    fn everything(&self) -> Record {
        let wanted: HashSet<_> = self.desired.elements.iter().collect();
        let others = self.had().iter().filter(|it| !wanted.contains(it));
        let elements = self.desired.elements.iter().chain(others);
        let links = self.earlier.iter().flat_map(Record::localnets);
        let former = links.filter(|it| Some(*it) != self.record.localnet);
        Record {
            former_localnets: former.collect(),
            ..self.record.with(elements.cloned().collect())
        }
    }

    fn write_down(&self) -> anyhow::Result<()> {
        let everything = self.everything();
        if Record::find(self.attachment).ok().as_ref() == Some(&everything) {
            return Ok(());
        }
        everything.write(&self.desired.owner, self.writing)
    }
}

/// Returns the record of an earlier ADD of the attachment; `None` if there is none. If the record is
/// unreadable, returns a copy of `record` with the elements in `nf_tables`.
fn earlier(record: &Record, desired: &DesiredElements) -> anyhow::Result<Option<Record>> {
    let earlier = Record::read(&desired.owner);
    if earlier.is_some() || !Record::is_torn(&desired.owner) {
        return Ok(earlier);
    }
    let elements = owned(&Connection::open()?, desired)?;
    Ok(Some(record.with(elements)))
}

/// Returns all elements in portmap's table that are tagged with the owner of `desired`.
fn owned(connection: &Connection, desired: &DesiredElements) -> anyhow::Result<Vec<Element>> {
    let mut elements = connection.elements(&desired.table).map_err(coded)?;
    elements.retain(|it| it.owner == desired.owner);
    Ok(elements)
}

/// Maximum number of attempts to install the ports. An attempt fails at the first port that another
/// attachment holds. So the maximum is more than the number of ports of a container in practice.
const MOST_HOLDERS: usize = 100;
