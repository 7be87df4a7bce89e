//! ADD: forwards the ports, and removes ports that only an earlier ADD of the attachment forwarded.

use std::cell::RefCell;

use attach::Writing;
use cni::{AddRequest, Answer, Answered, Undo};

use crate::installation::Installation;
use crate::plan::Plan;
use crate::wait;

/// Forwards the requested ports and prints `prevResult` unchanged as the result.
///
/// # Errors
/// A port cannot be forwarded. If an earlier ADD of the attachment forwarded ports, the rollback
/// has restored them.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let result = request.chained()?;
    let Some(plan) = Plan::of(request)? else {
        return Ok(answer.give(result)?);
    };
    cni::step("look at the sandbox");
    let ports = RefCell::new(Installation::new(request, &plan, Writing::All)?);
    let mut undo = Undo::default();
    undo.push("put the ports back", || ports.borrow().put_back());
    let stale = ports.borrow_mut().install(wait::FOR_DEL)?;
    cni::step("forget connections");
    ports.borrow().forget(&stale);
    let answered = answer.give(result)?;
    undo.keep();
    cni::step("drop the rollback");
    ports.borrow().finish();
    Ok(answered)
}
