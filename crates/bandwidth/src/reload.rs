//! RELOAD: restores the elements that ADD adds to `nf_tables`.

use anyhow::{Context as _, bail};
use cni::CheckRequest;
use netlink::Connection;

use crate::backstop::Backstop;
use crate::config::Config;
use crate::{host_link, ifb};

/// Restores the backstop; existing elements stay untouched. An attachment that the reference
/// limited gets a backstop, too.
///
/// DEL and GC delete the ifb, and then look for elements once more. If this function adds its
/// elements after that, it finds no ifb afterwards and removes the elements itself. So no elements
/// of a deleted attachment remain.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 100: the veth pair or the ifb does not exist, or the kernel refuses a request.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::of_attachment(request)?;
    request.chained()?;
    let Some(asked) = &config.egress else {
        return Ok(());
    };
    let attachment = &request.attachment;
    cni::step("find the ifb");
    let host = Connection::open()?;
    let host_link = host_link::find(request, &host)?;
    let find = || ifb::find_behind(&host_link, &host, attachment);
    find()?.with_context(|| format!("{attachment} has no ifb; only ADD creates one"))?;
    let limit = asked.limit(host_link.mtu)?;
    let backstop = Backstop::of(&limit, &config.traffic, &host_link, &attachment.owner());
    let Some(backstop) = backstop else {
        return Ok(());
    };
    cni::step("put back the backstop");
    backstop.put(|| ())?;
    let is_gone = || Ok(find()?.is_none());
    if is_gone()? {
        backstop.take_back(is_gone)?;
        bail!("{attachment} was deleted meanwhile");
    }
    Ok(())
}
