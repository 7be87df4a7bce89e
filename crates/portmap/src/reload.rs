//! RELOAD: the ports that ADD forwarded, once more.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::ensure;
use cni::{CheckRequest, Error, Undo};
use netns::{Netns, PATIENCE};

use crate::config::Config;
use crate::installation::Installation;
use crate::plan::Plan;
use crate::record::Records;
use crate::{firewall, holder};

/// Forwards the ports that are not; those that are stay untouched, with their connections.
///
/// # Errors
/// Code 7 where there is no `prevResult`; code 11: somebody who lives has taken a port; there is
/// no record of the sandbox, or it is another one; whatever the kernel refuses.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let result = request.chained()?;
    let config = Config::parse(&request.network)?;
    let attachment = &request.attachment;
    let plan = Plan::new(&config, result, &attachment.interface);
    plan.tell_of_idle();
    if plan.forwards.is_empty() {
        return Ok(());
    }
    cni::step("wait for other verbs");
    // A DEL must not come between the record and the ports.
    let lock = Netns::own()?.lock(PATIENCE).map_err(Error::try_again)?;
    cni::step("look at the sandbox");
    let record = Records::default().find(attachment)?;
    ensure!(
        !holder::is_over(&record),
        "the sandbox of {attachment} is gone, or has other addresses; DEL removes what is left of it"
    );
    let ports = RefCell::new(Installation::new(request, &config, &plan)?);
    let mut undo = Undo::default();
    undo.push("put the ports back", || ports.borrow().put_back());
    let stale = ports.borrow_mut().install(Duration::ZERO)?;
    undo.keep();
    ports.borrow().finish();
    drop(lock);
    firewall::forget(&stale);
    Ok(())
}
