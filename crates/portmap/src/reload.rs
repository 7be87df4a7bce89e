//! RELOAD: the ports that ADD forwarded, once more.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{bail, ensure};
use cni::{Attachment, CheckRequest, Undo};

use crate::config::Config;
use crate::installation::Installation;
use crate::plan::Plan;
use crate::record::Records;
use crate::{firewall, holder, localnet};

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
    cni::step("look at the sandbox");
    let records = Records::of_attached();
    let record = records.find(attachment)?;
    ensure!(
        !holder::is_over(&record),
        "the sandbox of {attachment} is gone, or has other addresses; DEL removes what is left of it"
    );
    let ports = RefCell::new(Installation::new(request, &config, &plan, records)?);
    let mut undo = Undo::default();
    undo.push("take back what a DEL left", || yield_to_removal(attachment));
    undo.push("put the ports back", || ports.borrow().put_back());
    let stale = ports.borrow_mut().install(Duration::ZERO)?;
    undo.keep();
    ports.borrow().finish();
    yield_to_removal(attachment)?;
    firewall::forget(&stale);
    Ok(())
}

/// Removes what was forwarded too late for a DEL or GC beside this to remove it. It has retired the
/// record before it looked for ports; an ADD has written another before it forwards any.
fn yield_to_removal(attachment: &Attachment) -> anyhow::Result<()> {
    let (owner, records) = (attachment.owner(), Records::default());
    if records.has(&owner) {
        return Ok(());
    }
    firewall::remove_unrecorded(&owner, &records)?;
    localnet::release(&owner, None)?;
    bail!("{attachment} was deleted meanwhile")
}
