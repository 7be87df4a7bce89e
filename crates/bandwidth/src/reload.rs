//! RELOAD: changes the limits of an attachment to those that its configuration asks for, and
//! restores the elements that ADD adds to `nf_tables`.

use anyhow::{Context as _, bail};
use attach::Removal;
use cni::{CheckRequest, note};
use netlink::{Connection, Link};
use tc::{Hook, LinkEgress, LinkIngress};

use crate::asked::Asked;
use crate::backstop::{self, Backstop};
use crate::config::Config;
use crate::{del, host_link, ifb};

/// Changes the limits in place and restores the backstop; existing equal ones stay untouched. An
/// attachment that the reference limited gets a backstop, too. Removes limits that are no longer
/// asked for.
///
/// DEL and GC delete the ifb, and then look for elements once more. If this function adds its
/// elements after that, it finds no ifb afterwards and removes the elements itself. So no elements
/// of a deleted attachment remain.
///
/// # Errors
/// Code 7: `prevResult` is missing. The veth pair or the ifb does not exist. The kernel refuses a
/// request.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::of_attachment(request)?;
    request.chained()?;
    cni::step("find the pair");
    let host = Connection::open()?;
    let host_link = match host_link::find(request, &host) {
        // A link of another kind has no limits.
        Err(_) if config.is_idle() => return Ok(()),
        found => found?,
    };
    let reloading = Reloading {
        request,
        config: &config,
        host: &host,
        host_link: &host_link,
    };
    cni::all([reloading.ingress(), reloading.egress()])
}

struct Reloading<'a> {
    request: &'a CheckRequest,
    config: &'a Config,
    host: &'a Connection,
    host_link: &'a Link,
}

impl Reloading<'_> {
    fn ingress(&self) -> anyhow::Result<()> {
        cni::step("limit what the sandbox receives");
        let link_egress = LinkEgress::new(self.host, self.host_link);
        let Some(asked) = &self.config.ingress else {
            return Ok(link_egress.withdraw()?);
        };
        let limit = asked.limit(self.host_link.mtu)?;
        match link_egress.ensure(&limit, &self.config.traffic) {
            Err(error) if is_foreign(&error) => {
                note(error);
                Ok(())
            }
            done => Ok(done?),
        }
    }

    fn egress(&self) -> anyhow::Result<()> {
        match &self.config.egress {
            Some(asked) => self.limit_egress(asked),
            None => self.remove_egress(),
        }
    }

    fn limit_egress(&self, asked: &Asked) -> anyhow::Result<()> {
        let attachment = &self.request.attachment;
        cni::step("limit what the sandbox sends");
        let find = || ifb::find_behind(self.host_link, self.host, attachment);
        let ifb = find()?;
        let ifb = ifb.with_context(|| format!("{attachment} has no ifb; only ADD creates one"))?;
        let (limit, traffic) = (asked.limit(self.host_link.mtu)?, &self.config.traffic);
        match ifb::limit(self.host, &ifb, &limit) {
            Err(error) if is_foreign(&error) => note(format_args!("{error:#}")),
            done => done?,
        }
        let backstop = Backstop::of(&limit, traffic, self.host_link, &attachment.owner());
        let Some(backstop) = backstop else {
            return Ok(());
        };
        cni::step("put back the backstop");
        backstop.put()?;
        let is_gone = || Ok(find()?.is_none());
        if is_gone()? {
            backstop.take_back(is_gone)?;
            bail!("{attachment} was deleted meanwhile");
        }
        Ok(())
    }

    /// Sends nothing to the attachment's ifb, and deletes it as DEL does.
    fn remove_egress(&self) -> anyhow::Result<()> {
        let attachment = &self.request.attachment;
        let ifbs = ifb::find(self.host, attachment)?.own;
        if ifbs.is_empty() {
            return Ok(());
        }
        cni::step("remove the limit of what the sandbox sends");
        LinkIngress::new(self.host, self.host_link).remove(Hook::Found)?;
        let owner = attachment.owner();
        let mut backstop = Removal::start(backstop::tables())?;
        let removed = backstop.remove(|it| it == owner);
        backstop.finish();
        cni::all([removed, del::delete_all(self.host, &ifbs)])
    }
}

/// Returns whether another program set the qdisc, or a version of the reference that sets an HTB.
/// RELOAD leaves such a qdisc, and CHECK reports it.
fn is_foreign(error: &tc::Error) -> bool {
    matches!(error, tc::Error::Foreign { .. })
}
