//! Limits one sandbox, for ADD and RELOAD.
//!
//! A limit changes in place: each step replaces an old setting by the new one. The rollback removes
//! what this call created where there was nothing before, and nothing else. So after a failure,
//! each direction of a live sandbox has its old or its new limit, and another call completes the
//! change.

use attach::Removal;
use cni::{AddRequest, Undo, note};
use netlink::{Connection, Link};
use tc::{Hook, Limit, LinkEgress, LinkIngress, Traffic};

use crate::backstop::{self, Backstop};
use crate::{del, ifb};

/// What is needed to set the limits of one sandbox.
#[derive(Clone, Copy)]
pub(crate) struct Limiting<'a> {
    pub request: &'a AddRequest,
    pub host: &'a Connection,
    pub host_link: &'a Link,
    pub traffic: &'a Traffic,
}

impl<'a> Limiting<'a> {
    /// Limits the sandbox's ingress, which is the egress of the veth pair's host end.
    ///
    /// # Errors
    /// Another program limits the link; refusals of the kernel.
    pub fn ingress(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        cni::step("limit what the sandbox receives");
        let link = self.host_link;
        let link_egress = LinkEgress::new(self.host, link);
        let held = link_egress.held()?;
        if !held.is_limited() {
            undo.push("take the limit from the host's end", move || {
                // Opens a new connection, because the rollback may run after the connection of the
                // ADD failed.
                Ok(LinkEgress::new(&Connection::open()?, link).remove()?)
            });
        }
        Ok(link_egress.ensure(&held, limit, self.traffic)?)
    }

    /// Limits the sandbox's egress, which is the ingress of the veth pair's host end. The ifb is up
    /// and has its limit before packets are redirected to it. Returns the ifb.
    ///
    /// # Errors
    /// - Code 11: a concurrent ADD of the attachment creates the ifb.
    /// - Code 100: refusals of the kernel.
    pub fn egress(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<Link> {
        cni::step("limit what the sandbox sends");
        let attachment = &self.request.attachment;
        if let Some(found) = ifb::find_behind(self.host_link, self.host, attachment)? {
            return self.change_egress(found, limit, undo);
        }
        let on_made = || self.delete_on_failure(undo);
        let ifb = ifb::make(self.host, attachment, self.host_link.mtu, on_made)?;
        ifb::set_up(self.host, &ifb, attachment, limit)?;
        self.send_to(&ifb, undo)?;
        self.backstop(limit, undo)?;
        Ok(ifb)
    }

    /// Changes the limit of an ifb. The backstop's rate is never below the rate of the ifb, because
    /// it would drop packets of a sandbox that keeps to its limit.
    fn change_egress(self, ifb: Link, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<Link> {
        let (host, attachment) = (self.host, &self.request.attachment);
        let held = LinkEgress::new(host, &ifb).held()?;
        let is_raise = held.rate().is_some_and(|it| it < limit.rate.bytes());
        if is_raise {
            self.backstop(limit, undo)?;
        }
        let ifb = ifb::adopt(host, ifb, attachment, self.host_link.mtu)?;
        LinkEgress::new(host, &ifb).ensure(&held, limit, &Traffic::All)?;
        ifb::bring_up(host, &ifb)?;
        self.send_to(&ifb, undo)?;
        if !is_raise {
            self.backstop(limit, undo)?;
        }
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
        backstop.put(|| undo.push("remove the backstop", remove))
    }

    /// Redirects the sandbox's packets to the ifb. The rollback removes the redirection before it
    /// deletes the ifb, because the kernel drops packets that are redirected to a deleted ifb.
    fn send_to(self, ifb: &Link, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        let link = self.host_link;
        let hook = LinkIngress::new(self.host, link).find_hook(ifb)?;
        if hook != Hook::Redirecting {
            undo.push("send nothing to the ifb", move || {
                Ok(LinkIngress::new(&Connection::open()?, link).remove(hook)?)
            });
        }
        Ok(LinkIngress::new(self.host, link).ensure(hook, ifb, self.traffic)?)
    }
}
