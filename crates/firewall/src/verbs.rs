//! The verbs.

use std::collections::HashSet;

use anyhow::{bail, ensure};
use cni::{
    AddRequest, Answer, Answered, Attachment, CheckRequest, DelRequest, GcRequest, StatusRequest,
    Undo, note,
};

use crate::config::Config;
use crate::desired::Desired;
use crate::{installation, record};

/// Gives the sandbox permission and isolates its bridge; answers with `prevResult` unchanged.
///
/// # Errors
/// Everything that prevents it. Nothing of the attachment is left then.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let (result, desired) = desired(request)?;
    if desired.elements.is_empty() {
        return Ok(answer.give(result)?);
    }
    let owner = request.attachment.owner();
    let mut undo = Undo::default();
    undo.push("remove the elements", || remove(&owner));
    cni::step("write the record");
    if let Err(error) = record::write(&owner) {
        note(format_args!("RELOAD will not restore {owner}: {error:#}"));
    }
    cni::step("add the elements and rules");
    desired.install()?;
    let answered = answer.give(result)?;
    undo.keep();
    Ok(answered)
}

/// Removes what the attachment has, by its owner alone. A missing item counts as removed.
///
/// # Errors
/// All refusals.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("remove the elements");
    remove(&request.attachment.owner())
}

/// Compares elements, chains and rules.
///
/// # Errors
/// One error with all differences. Code 7: `prevResult` is missing.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let (_, desired) = desired(request)?;
    if desired.elements.is_empty() {
        return Ok(());
    }
    cni::step("compare");
    let differences = desired.differences()?;
    if differences.is_empty() {
        return Ok(());
    }
    bail!(
        "{} is not as ADD left it: {}; `cnitool reload` puts back what is missing",
        request.attachment,
        differences.join("; ")
    )
}

/// Checks the configuration and the kernel's support, without a change.
///
/// # Errors
/// The configuration is invalid. Code 50: the kernel does not support a part of `nf_tables`, or
/// this process has no access to it.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    Ok(installation::dry_run(&config)?)
}

/// Removes what belongs to this network and to no listed attachment.
///
/// # Errors
/// All refusals; every step is tried.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: HashSet<_> = request.valid.iter().map(Attachment::owner).collect();
    let network = &request.network.name;
    let is_stale = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    cni::step("remove the elements");
    let owners = record::owners();
    let owners = owners.iter().flatten().filter(|it| is_stale(it));
    let records = cni::all(owners.map(|it| record::remove(it)));
    let elements = installation::remove(is_stale).map(|owners| {
        for owner in owners {
            note(format_args!(
                "removed the permission of {owner}, which the runtime does not list"
            ));
        }
    });
    cni::all([records, elements])
}

/// Restores what ADD left, as after a flush of the rules. Present elements and rules stay untouched.
///
/// # Errors
/// Code 7: `prevResult` is missing. The attachment has no record, as after a DEL. Refusals of the
/// kernel.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let (_, desired) = desired(request)?;
    if desired.elements.is_empty() {
        return Ok(());
    }
    let (attachment, owner) = (&request.attachment, request.attachment.owner());
    ensure!(
        record::has(&owner),
        "there is no record of {attachment}, as after a DEL or an ADD by another plugin; only ADD creates one"
    );
    cni::step("put back the elements and rules");
    desired.restore()?;
    if !record::has(&owner) {
        remove(&owner)?;
        bail!("{attachment} was deleted meanwhile");
    }
    Ok(())
}

fn desired(request: &AddRequest) -> anyhow::Result<(&cni::AddResult, Desired)> {
    let result = request.chained()?;
    let config = Config::parse(&request.network)?;
    let desired = Desired::new(&config, &request.attachment, result)?;
    Ok((result, desired))
}

/// Removes the record before the elements, as RELOAD expects.
fn remove(owner: &str) -> anyhow::Result<()> {
    let record = record::remove(owner);
    let elements = installation::remove(|it| it == owner);
    cni::all([record, elements.map(drop)])
}
