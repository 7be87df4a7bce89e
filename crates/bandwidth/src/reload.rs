//! RELOAD: what ADD put into `nf_tables`, once more.

use anyhow::{Context as _, bail};
use cni::{CheckRequest, Error};
use netlink::Connection;
use netns::Netns;

use crate::backstop::Backstop;
use crate::config::Config;
use crate::plan::Plan;
use crate::{host_link, ifb};

/// Puts back the backstop; what is there stays untouched. An attachment that the reference limited gets one.
///
/// DEL and GC delete the ifb before their last look for the backstop. So one that looks too early to find what is added
/// here has deleted the ifb by then, and what was added is taken back.
///
/// # Errors
/// Code 7 where there is no `prevResult`; the pair or the ifb is gone; whatever the kernel refuses.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    request.chained()?;
    if config.egress.is_none() {
        return Ok(());
    }
    let attachment = &request.attachment;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    cni::step("find the ifb");
    let host = Connection::open()?;
    let host_link = host_link::find(request, &host, &namespace)?;
    let find = || ifb::find_behind(&host_link, &host, attachment);
    find()?.with_context(|| format!("{attachment} has no ifb; only ADD makes one"))?;
    let plan = Plan::new(&config, host_link.mtu)?;
    let Some(backstop) = Backstop::of(&plan, &host_link, &attachment.owner()) else {
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
