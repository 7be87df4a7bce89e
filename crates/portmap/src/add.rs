//! ADD: the ports, in the place of those that an earlier one forwarded.

use std::cell::RefCell;

use cni::{AddRequest, Answer, Answered, Undo};

use crate::config::Config;
use crate::installation::Installation;
use crate::plan::Plan;
use crate::record::Records;
use crate::{firewall, wait};

/// Forwards the ports that were asked for, and answers what the plugins before did.
///
/// # Errors
/// Whatever stands in the way; nothing of it is left by then but what was there before.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let result = request.chained()?;
    let config = Config::parse(&request.network)?;
    if config.mappings.is_empty() {
        return Ok(answer.give(result)?);
    }
    let plan = Plan::new(&config, result, &request.attachment.interface);
    plan.tell_of_idle();
    if plan.forwards.is_empty() {
        return Ok(answer.give(result)?);
    }
    cni::step("look at the sandbox");
    let ports = RefCell::new(Installation::new(
        request,
        &config,
        &plan,
        Records::default(),
    )?);
    let mut undo = Undo::default();
    undo.push("put the ports back", || ports.borrow().put_back());
    let stale = ports.borrow_mut().install(wait::FOR_DEL)?;
    cni::step("forget connections");
    firewall::forget(&stale);
    let answered = answer.give(result)?;
    undo.keep();
    cni::step("forget the way back");
    ports.borrow().finish();
    Ok(answered)
}
