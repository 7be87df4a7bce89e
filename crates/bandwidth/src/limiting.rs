//! The limits of one sandbox, for ADD, CHECK and RELOAD.
//!
//! A limit changes in place: each step replaces an old setting by the new one. The rollback removes
//! only what the failed verb added, and does not restore replaced settings. So after a failure,
//! each direction of a live sandbox has its old or its new limit, and a repetition of the verb
//! completes the change.

use attach::Removal;
use cni::{AddRequest, Error, Undo, note};
use netlink::{Connection, Link};
use tc::{Held, Hook, Limit, LinkEgress, LinkIngress, Traffic};

use crate::Asked;
use crate::backstop::{self, Backstop};
use crate::ifb::{Ifbs, is_made};

/// A sandbox, and the traffic that its limits apply to.
#[derive(Clone, Copy)]
pub(crate) struct Limiting<'a> {
    pub request: &'a AddRequest,
    pub host: &'a Connection,
    /// The host's end of the sandbox's veth pair.
    pub host_link: &'a Link,
    pub traffic: &'a Traffic,
}

impl<'a> Limiting<'a> {
    /// Converts `asked` to a limit for the MTU of the veth pair. Returns `None` if `asked` is
    /// `None`.
    ///
    /// # Errors
    /// As [`Asked::limit`].
    pub fn limit(self, asked: Option<&Asked>) -> Result<Option<Limit>, Error> {
        asked.map(|it| it.limit(self.host_link.mtu)).transpose()
    }

    fn ifbs(self) -> Ifbs<'a> {
        Ifbs {
            host: self.host,
            attachment: &self.request.attachment,
        }
    }

    /// Returns the ifb that limits what the sandbox sends; `None` if there is no ifb.
    ///
    /// # Errors
    /// As [`Ifbs::find_behind`].
    pub fn find_ifb(self) -> anyhow::Result<Option<Link>> {
        self.ifbs().find_behind(self.host_link)
    }

    /// Computes the backstop (second limit in `nf_tables`) for the egress limit `limit`; `None` if
    /// its rate is too high for `nf_tables`.
    pub fn backstop(self, limit: &Limit) -> Option<Backstop> {
        let owner = self.request.attachment.owner();
        Backstop::of(limit, self.traffic, self.host_link, &owner)
    }

    /// Limits the sandbox's ingress, which is the egress of the veth pair's host end.
    ///
    /// # Errors
    /// Another program set a root qdisc on the host end, or the kernel refuses a request.
    pub fn ingress(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        cni::step("limit what the sandbox receives");
        let link = self.host_link;
        let link_egress = LinkEgress::new(self.host, link);
        let held = link_egress.held()?;
        if !held.is_limited() {
            undo.push("take the limit from the host's end", move || {
                // Opens a new connection, because the rollback may run after `self.host` failed.
                Ok(LinkEgress::new(&Connection::open()?, link).remove()?)
            });
        }
        Ok(link_egress.ensure(&held, limit, self.traffic)?)
    }

    /// Limits the sandbox's egress, which is the ingress of the veth pair's host end. Creates an
    /// ifb or takes over the existing one, redirects packets to the ifb, and adds or updates the
    /// backstop (second limit in `nf_tables`). A new ifb is up and has its limit before packets are
    /// redirected to it. Returns the ifb.
    ///
    /// # Errors
    /// - Code 11: a concurrent ADD of the attachment creates the ifb.
    /// - Code 100: another program set a root qdisc on the ifb, or the kernel refuses a request.
    pub fn egress(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<Link> {
        cni::step("limit what the sandbox sends");
        if let Some(found) = self.find_ifb()? {
            return self.change_egress(found, limit, undo);
        }
        let on_made = || self.delete_on_failure(undo);
        let ifb = self.ifbs().make(self.host_link.mtu, on_made)?;
        self.ifbs().set_up(&ifb, limit)?;
        self.send_to(&ifb, undo)?;
        self.put_backstop(limit, undo)?;
        Ok(ifb)
    }

    /// Takes over an existing ifb, changes its limit and the backstop, redirects packets to the
    /// ifb, and returns it.
    fn change_egress(self, ifb: Link, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<Link> {
        let host = self.host;
        let held = LinkEgress::new(host, &ifb).held()?;
        if is_raise(&held, limit) {
            self.put_backstop(limit, undo)?;
        }
        let ifb = self.ifbs().adopt(ifb, self.host_link.mtu)?;
        LinkEgress::new(host, &ifb).ensure(&held, limit, &Traffic::All)?;
        self.ifbs().bring_up(&ifb)?;
        self.send_to(&ifb, undo)?;
        if !is_raise(&held, limit) {
            self.put_backstop(limit, undo)?;
        }
        Ok(ifb)
    }

    /// Changes the limit of an ifb to `limit` if this plugin set the present one. A limit of
    /// another program, such as the Go plugin, stays. Also adds or updates the backstop, the second
    /// limit in `nf_tables`.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn change_rate(self, ifb: &Link, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        let link_egress = LinkEgress::new(self.host, ifb);
        let held = match link_egress.held() {
            Err(tc::Error::Foreign { .. }) => Held::default(),
            held => held?,
        };
        if is_raise(&held, limit) {
            self.put_backstop(limit, undo)?;
        }
        link_egress.change(limit, &Traffic::All)?;
        if !is_raise(&held, limit) {
            self.put_backstop(limit, undo)?;
        }
        Ok(())
    }

    /// Checks that RELOAD can change the limit of the sandbox's ingress to `asked`. `None` stands
    /// for the removal of the limit. Accepts a sandbox without a limit.
    ///
    /// # Errors
    /// - Code 7: the limit is to be removed, but the Go plugin set it.
    /// - Code 100: another program set a root qdisc on the veth pair's host end, or the kernel
    ///   refuses a request.
    pub fn expect_changeable_ingress(self, asked: Option<&Asked>) -> anyhow::Result<()> {
        let held = LinkEgress::new(self.host, self.host_link).held()?;
        let is_own = held.is_own() || !held.is_limited() || asked.is_some();
        is_own.then_some(()).ok_or_else(|| not_own(self.host_link))
    }

    /// Checks that RELOAD can change the limit of the sandbox's ifb to `asked`. `None` stands for
    /// the removal of the limit. Accepts a sandbox without an ifb.
    ///
    /// # Errors
    /// - Code 7: the limit is to be removed, but the Go plugin created the ifb or set the limit.
    /// - Code 100: another program set a root qdisc on the ifb, or the kernel refuses a request.
    pub fn expect_changeable_egress(self, asked: Option<&Asked>) -> anyhow::Result<()> {
        let Some(ifb) = self.find_ifb()? else {
            return Ok(());
        };
        let held = LinkEgress::new(self.host, &ifb).held()?;
        let is_made = is_made(&ifb, &self.request.attachment);
        let is_own = asked.is_some() || is_made && (held.is_own() || !held.is_limited());
        is_own.then_some(()).ok_or_else(|| not_own(&ifb))
    }

    /// Removes the limit of the sandbox's ingress.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn remove_ingress(self) -> anyhow::Result<()> {
        cni::step("remove the limit of what the sandbox receives");
        Ok(LinkEgress::new(self.host, self.host_link).remove()?)
    }

    /// Removes the limit of the sandbox's egress, in three steps: the backstop (second limit in
    /// `nf_tables`), the redirection to the ifb, the ifb. The backstop comes first: if it outlived
    /// the ifb, it would drop packets of a sandbox without a limit.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn remove_egress(self) -> anyhow::Result<()> {
        cni::step("remove the limit of what the sandbox sends");
        let owner = self.request.attachment.owner();
        Removal::start(backstop::tables())?.remove(|it| it == owner)?;
        LinkIngress::new(self.host, self.host_link).remove(Hook::Redirecting)?;
        self.ifbs().delete_own()
    }

    fn delete_on_failure(self, undo: &mut Undo<'a>) {
        let attachment = &self.request.attachment;
        undo.push("delete the ifb", move || {
            let host = &Connection::open()?;
            Ifbs { host, attachment }.delete_own()
        });
    }

    /// Limits packets that bypass the ifb: adds or updates the backstop, the second limit in
    /// `nf_tables`. If the rate is too high for `nf_tables`, logs this on standard error and
    /// removes the backstop.
    ///
    /// # Errors
    /// As [`Backstop::put`].
    pub fn put_backstop(self, limit: &Limit, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        cni::step("limit what evades the ifb");
        let owner = self.request.attachment.owner();
        let remove = move || Removal::start(backstop::tables())?.remove(|it| it == owner);
        let Some(backstop) = self.backstop(limit) else {
            note(
                "egressRate: nf_tables cannot count this rate, so only the ifb limits the container",
            );
            // An earlier call may have added a backstop with a lower rate. It would drop packets
            // that keep to the new limit.
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

/// Returns whether `limit` has a higher rate than `held`, the present limit of an ifb. Returns
/// `false` if `held` contains no limit.
///
/// If the rate rises, the caller changes the backstop (second limit in `nf_tables`) before the ifb.
/// If the backstop's rate were below the ifb's, it would drop packets that keep to the limit.
fn is_raise(held: &Held, limit: &Limit) -> bool {
    held.rate().is_some_and(|it| it < limit.rate.bytes())
}

fn not_own(link: &Link) -> anyhow::Error {
    let reason = format!(
        "{} has a limit that this plugin did not set; only DEL by the plugin that set it removes it",
        link.name
    );
    Error::invalid(CHANGE_LIMITS, reason).into()
}

/// The configuration key that lists the directions whose limits RELOAD, a verb of this suite,
/// changes.
pub(crate) const CHANGE_LIMITS: &str = "runtimeConfig.changeLimits";
