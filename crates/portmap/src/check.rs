//! CHECK compares the kernel's state with the configuration; STATUS reports whether an ADD can succeed.

use anyhow::ensure;
use attach::Differences;
use cni::{CheckRequest, StatusRequest};
use netlink::Connection;

use crate::plan::Plan;
use crate::record::{self, Record};
use crate::{Config, config, firewall, localnet, table};

/// Compares the attachment's elements and chains in `nf_tables` with the configuration. If a port
/// of 127.0.0.1 is forwarded with masquerading, also compares the sysctl `route_localnet` and the
/// `IPsec` policies that keep other hosts off 127.0.0.0/8.
///
/// # Errors
/// - Code 7: a key is invalid, or `prevResult` is missing.
/// - Code 100: the attachment has no readable record, or differs from the configuration. One error
///   names all differences.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let attachment = &request.attachment;
    let Some(plan) = Plan::of(request)? else {
        let has_record = record::files().has(&attachment.owner());
        let is_forwarded = has_record && config::may_ask(&request.network)?;
        ensure!(
            !is_forwarded,
            "{attachment} has ports that its configuration does not ask for"
        );
        return Ok(());
    };
    cni::step("compare");
    let record = Record::find(attachment)?;
    let owner = attachment.owner();
    let own = (owner.as_str(), record.host_link);
    let links = localnet::own_links(&Connection::open()?, &plan.pods(), own)?;
    let desired = table::desired(&plan, &links, owner);
    let mut differences = Differences::default();
    differences.extend(firewall::differences(&desired, &record)?);
    if let Some(link) = localnet::link(&links, &plan) {
        differences.extend(localnet::differences(link, plan.config.localhost_guard)?);
    }
    differences.report_restorable(attachment)
}

/// Checks whether the configuration is valid and, by a dry run, whether the kernel supports
/// portmap's rules.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the kernel does not support a part of `nf_tables`, or this process has no access to
///   it.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    Ok(attach::dry_run(table::tables())?)
}
