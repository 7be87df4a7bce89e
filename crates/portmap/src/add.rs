//! ADD: a record of the sandbox, the ports, the way out for 127.0.0.1.

use anyhow::Context as _;
use cni::{AddRequest, Answer, Answered, Undo, note};

use crate::config::Config;
use crate::plan::{HostPort, Plan};
use crate::record::{Identity, Record, Records};
use crate::{del, firewall, holder, localnet, table};

/// Forwards the ports that were asked for, and answers what the plugins before did.
///
/// # Errors
/// Whatever stands in the way; nothing of it is left by then.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let result = request.chained()?;
    let config = Config::parse(&request.network)?;
    if config.mappings.is_empty() {
        return Ok(answer.give(result)?);
    }
    let attachment = &request.attachment;
    let plan = Plan::new(&config, result, &attachment.interface)?;
    for mapping in &plan.idle {
        note(format_args!(
            "{mapping} leads nowhere: the container has no address of that family"
        ));
    }
    let mut undo = Undo::default();
    if !plan.forwards.is_empty() {
        undo.push("remove the ports", || del::remove(attachment));
        let stale = forward(request, &config, &plan)?;
        firewall::forget(&stale);
    }
    let answered = answer.give(result)?;
    undo.keep();
    Ok(answered)
}

/// The record comes first, so that no port is ever without one, and the sysctl after the rule
/// that keeps neighbours off 127.0.0.1. What is there already stays. Says to which ports there are
/// connections that must be forgotten.
///
/// # Errors
/// Code 11: a port is somebody else's; whatever the kernel refuses.
pub(crate) fn forward(
    request: &AddRequest,
    config: &Config,
    plan: &Plan,
) -> anyhow::Result<Vec<HostPort>> {
    let owner = request.attachment.owner();
    let pods = plan.pods();
    let links = localnet::links(&pods)?;
    let claim = table::claim(plan, config, &links, &owner);
    let identity = Identity::of(&request.netns)
        .with_context(|| format!("look at CNI_NETNS {}", request.netns.display()))?;
    let records = Records::default();
    let record = Record {
        netns: request.netns.clone(),
        identity,
        interface: request.attachment.interface.as_str().to_owned(),
        host_link: holder::host_link(request.chained()?, &request.netns)?,
        addresses: pods,
        elements: claim.elements.clone(),
    };
    let before = records.read(&owner);
    if before.as_ref() != Some(&record) {
        if before.is_some_and(|it| it.elements != record.elements) {
            // The record must not forget what an earlier ADD left.
            firewall::remove_of(&owner, &records)?;
        }
        records.write(&owner, &record)?;
    }
    let stale = firewall::install(&claim, &owner, &records)?;
    if let Some(pod) = plan.localnet() {
        localnet::let_out(&links, pod)?;
    }
    Ok(stale)
}
