//! ADD: forwards the ports, and removes ports that only an earlier ADD of the attachment forwarded.
//! RELOAD: restores what is missing of them.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{bail, ensure};
use attach::Writing;
use cni::{AddRequest, Answer, Answered, Attachment, CheckRequest, Undo};

use crate::installation::Installation;
use crate::plan::Plan;
use crate::record::{self, Record};
use crate::{config, del, firewall, liveness, localnet, wait};

/// Forwards the requested ports and prints `prevResult` unchanged as the result.
///
/// # Errors
/// A port cannot be forwarded. If an earlier ADD of the attachment forwarded ports, the rollback
/// has restored them.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let result = request.chained()?;
    let Some(plan) = Plan::of(request)? else {
        let has_record = record::files().has(&request.attachment.owner());
        if has_record && config::may_ask(&request.network)? {
            del::remove(&request.attachment)?;
        }
        return Ok(answer.give(result)?);
    };
    cni::step("look at the sandbox");
    let ports = RefCell::new(Installation::new(request, &plan, Writing::All)?);
    let mut undo = Undo::default();
    undo.push("put the ports back", || ports.borrow().put_back());
    let stale = ports.borrow_mut().install(wait::FOR_DEL)?;
    cni::step("forget connections");
    ports.borrow().forget(&stale);
    let answered = answer.give_and_keep(result, undo)?;
    cni::step("drop the rollback");
    ports.borrow().finish();
    Ok(answered)
}

/// Forwards those ports of the attachment that are no longer forwarded. The other ports stay
/// untouched, and so do their connections. If a newer attachment has the same address, it has taken
/// over the elements that masquerade clients of this address. RELOAD leaves these elements to it.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 11: another live attachment has taken a port.
/// - Code 100: the attachment has no record, or its sandbox or interface no longer exists. Or a DEL
///   has removed the attachment during this call.
/// - Code 100: the kernel refuses a request.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let Some(plan) = Plan::of(request)? else {
        return Ok(());
    };
    let attachment = &request.attachment;
    cni::step("look at the sandbox");
    let record = Record::find(attachment)?;
    ensure!(
        !liveness::is_over(&record),
        "the sandbox or interface of {attachment} no longer exists; DEL removes its resources"
    );
    let ports = RefCell::new(Installation::new(request, &plan, Writing::Existing)?);
    let mut undo = Undo::default();
    undo.push("remove ports beside a DEL", || {
        yield_to_removal(attachment, ports.borrow().displaced())
    });
    undo.push("put the ports back", || ports.borrow().put_back());
    let stale = ports.borrow_mut().install(Duration::ZERO)?;
    undo.keep();
    ports.borrow().finish();
    yield_to_removal(attachment, ports.borrow().displaced())?;
    ports.borrow().forget(&stale);
    Ok(())
}

/// Removes the attachment's ports and returns an error if a concurrent DEL or GC has retired
/// (renamed) the attachment's record. DEL and GC retire the record before they look for the ports,
/// so they may have missed ports that RELOAD forwarded later. A concurrent ADD is not affected,
/// because it writes a new record before it forwards any port. `displaced` are the attachments that
/// may get elements back.
fn yield_to_removal(attachment: &Attachment, displaced: &[String]) -> anyhow::Result<()> {
    let owner = attachment.owner();
    if record::files().has(&owner) {
        return Ok(());
    }
    firewall::remove_unrecorded(&owner, displaced)?;
    localnet::release(&owner, None)?;
    bail!("{attachment} was deleted meanwhile")
}
