//! ADD: sets the limits, with a rollback.

use attach::{Removal, interface};
use cni::{AddRequest, Answer, Answered, Undo, note};
use netlink::{Connection, Link};
use tc::{Limit, LinkEgress, LinkIngress, Traffic};

use crate::allocation::Allocation;
use crate::asked::Asked;
use crate::backstop::{self, Backstop};
use crate::config::Config;
use crate::{del, host_link, ifb, record};

/// Sets the configured limits. If what the sandbox sends is limited, adds its ifb to the result.
///
/// # Errors
/// A limit cannot be set. The rollback has then removed all limits that this ADD set.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let (config, allocation) = configured(request)?;
    let mut result = request.chained()?.clone();
    if config.is_idle() {
        return Ok(answer.give(&result)?);
    }
    let host = Connection::open()?;
    cni::step("find the pair");
    let host_link = host_link::find(request, &host)?;
    let limit = |asked: &Option<Asked>| {
        let limit = asked.as_ref().map(|it| it.limit(host_link.mtu));
        limit.transpose()
    };
    let (ingress, egress) = (limit(&config.ingress)?, limit(&config.egress)?);
    let limiting = Limiting {
        request,
        host: &host,
        host_link: &host_link,
        traffic: &config.traffic,
    };
    let mut undo = Undo::default();
    // The ifb comes first, because it works as a lock: of several concurrent ADDs of the
    // attachment, only one can create it.
    if let Some(limit) = &egress {
        let ifb = limiting.egress(limit, &mut undo)?;
        result.interfaces.push(interface(&ifb));
        limiting.backstop(limit, &mut undo)?;
    }
    if let Some(limit) = &ingress {
        limiting.ingress(limit, &mut undo)?;
    }
    if !allocation.is_empty() {
        limiting.remember(&allocation, &mut undo)?;
    }
    let answered = answer.give(&result)?;
    undo.keep();
    Ok(answered)
}

/// Returns the kubelet's allocation for the pod, and the configuration with the limits that follow
/// from it.
fn configured(request: &AddRequest) -> anyhow::Result<(Config, Allocation)> {
    let config = Config::parse(&request.network)?;
    let Some(resources) = &config.pod_resources else {
        return Ok((config, Allocation::default()));
    };
    cni::step("read the allocation");
    let allocation = resources.allocated(request)?;
    if allocation.is_empty() {
        // An earlier ADD of the attachment may have left the record of an allocation, if no DEL
        // followed.
        record::remove(&request.attachment.owner())?;
    }
    Ok((config.with(&allocation), allocation))
}

/// What is needed to set the limits of one sandbox.
#[derive(Clone, Copy)]
struct Limiting<'a> {
    request: &'a AddRequest,
    host: &'a Connection,
    host_link: &'a Link,
    traffic: &'a Traffic,
}

impl<'a> Limiting<'a> {
    /// Limits the sandbox's ingress, which is the egress of the veth pair's host end.
    fn ingress(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        cni::step("limit what the sandbox receives");
        let link = self.host_link;
        undo.push("take the limit from the host's end", move || {
            // Opens a new connection, because the rollback may run after the connection of the ADD
            // failed.
            Ok(LinkEgress::new(&Connection::open()?, link).remove()?)
        });
        Ok(LinkEgress::new(self.host, link).ensure(limit, self.traffic)?)
    }

    /// Limits the sandbox's egress, which is the ingress of the veth pair's host end. The ifb is up
    /// and has its limit before packets are redirected to it. Returns the ifb.
    fn egress(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<Link> {
        cni::step("limit what the sandbox sends");
        let attachment = &self.request.attachment;
        let (host, mtu) = (self.host, self.host_link.mtu);
        let ifb = if let Some(found) = ifb::find_behind(self.host_link, host, attachment)? {
            self.delete_on_failure(undo);
            let ifb = ifb::adopt(host, found, attachment, mtu)?;
            ifb::limit(host, &ifb, limit)?;
            ifb
        } else {
            let on_made = || self.delete_on_failure(undo);
            let ifb = ifb::make(host, attachment, mtu, on_made)?;
            ifb::set_up(host, &ifb, attachment, limit)?;
            ifb
        };
        self.send_to(&ifb, undo)?;
        Ok(ifb)
    }

    fn delete_on_failure(self, undo: &mut Undo<'a>) {
        let attachment = &self.request.attachment;
        undo.push("delete the ifb", move || {
            let host = Connection::open()?;
            del::delete_all(&host, &ifb::find(&host, attachment)?.own)
        });
    }

    fn backstop(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        cni::step("limit what evades the ifb");
        let owner = self.request.attachment.owner();
        let backstop = Backstop::of(limit, self.traffic, self.host_link, &owner);
        let remove = move || Removal::start(backstop::tables())?.remove(|it| it == owner);
        let Some(backstop) = backstop else {
            note(
                "egressRate: nf_tables cannot count this rate, so only the ifb limits the container",
            );
            // An earlier ADD may have limited the container to a lower rate.
            return remove();
        };
        undo.push("remove the backstop", remove);
        backstop.put()
    }

    /// Redirects the sandbox's packets to the ifb. The rollback removes the redirection before it
    /// deletes the ifb, because the kernel drops packets that are redirected to a deleted ifb.
    fn send_to(self, ifb: &Link, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        let link = self.host_link;
        let hook = LinkIngress::new(self.host, link).find_hook()?;
        undo.push("send nothing to the ifb", move || {
            Ok(LinkIngress::new(&Connection::open()?, link).remove(hook)?)
        });
        Ok(LinkIngress::new(self.host, link).ensure(hook, ifb, self.traffic)?)
    }

    /// Records the allocation for CHECK and RELOAD; DEL needs no record to find the limits. ADD
    /// writes the record after it has created the ifb. A concurrent ADD of the attachment fails to
    /// create the ifb, so it writes no record.
    fn remember(self, allocation: &Allocation, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        cni::step("record the allocation");
        let owner = self.request.attachment.owner();
        let of_undo = owner.clone();
        undo.push("remove the record", move || record::remove(&of_undo));
        record::write(&owner, allocation)
    }
}
