//! RELOAD, a verb of this suite: restores the backstop (the second egress limit in `nf_tables`) and
//! changes limits.
//!
//! A caller may repeat RELOAD with a configuration that is older than the present limits. So RELOAD
//! creates and removes limits only in the directions that the key `changeLimits` names. Without
//! that key, RELOAD changes only the rates of limits that this plugin set.

use std::time::Duration;

use anyhow::{Context as _, bail};
use cni::{CheckRequest, Error, Undo, or_note};
use tc::{BitsPerSecond, Limit};

use crate::backstop::Backstop;
use crate::limiting::{CHANGE_LIMITS, Limiting};
use crate::pair;
use crate::record::{self, Record};
use crate::{Asked, Config, Direction};

/// Sets, changes or removes the limits in the directions that the key `changeLimits` names, as
/// configured. A direction that the key does not name keeps its limit.
///
/// Without the key, changes the rates of limits that this plugin set, and restores the backstop
/// (the second egress limit in `nf_tables`). An attachment that the Go plugin limited gets a
/// backstop, too.
///
/// A concurrent DEL or GC retires the record and then removes the backstop. If this function adds
/// the backstop after that, it then finds no record and removes the backstop itself. So no backstop
/// of a deleted attachment remains.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Codes 4 and 7: [`Limiting::of`] does not find the veth pair.
/// - Code 7: the rate of a direction in `changeLimits` exceeds the pod's allocation.
/// - Code 7: a limit is to be removed, but the Go plugin set it.
/// - Code 100: another program set a qdisc on a limited link, a DEL runs, or the kernel refuses a
///   request. Each limit then has its old or its new rate.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    // The directions in which limits are added, changed or removed. Only `cnitool limit` sends it.
    let named: Vec<Direction> = request.network.key(CHANGE_LIMITS)?;
    let config = Config::of_attachment(request)?;
    expect_allocated(request, &named)?;
    request.chained()?;
    if config.limits.is_empty() && named.is_empty() {
        return Ok(());
    }
    let limiting = match Limiting::of(request, &config.traffic) {
        Err(error) if named.is_empty() => {
            return cni::all([Err(error), restore_backstop(request, &config)]);
        }
        limiting => limiting?,
    };
    let record = record::read(&request.attachment.owner())?;
    for direction in &named {
        limiting.expect_changeable(*direction, config.limits.get(direction))?;
    }
    let reload = Reload {
        limiting,
        named: &named,
        may_exceed: config.pod_resources.is_some() && record.allocation.is_empty(),
        record,
    };
    let reloaded = Direction::BOTH.map(|it| reload.direction(it, config.limits.get(&it)));
    cni::all(reloaded)
}

/// Restores the backstop of a recorded attachment whose sandbox does not show the pair: root in the
/// sandbox may have renamed its interface, and must not escape the limit by that.
fn restore_backstop(request: &CheckRequest, config: &Config) -> anyhow::Result<()> {
    let owner = request.attachment.owner();
    let is_gone = || anyhow::Ok(!record::read(&owner)?.limits_egress);
    let Some(asked) = config.limits.get(&Direction::Egress) else {
        return Ok(());
    };
    if is_gone()? {
        return Ok(());
    }
    let Some(host_link) = pair::host_end(request)? else {
        return Ok(());
    };
    cni::step("limit what evades the qdisc");
    let limit = asked.limit(host_link.mtu)?;
    let backstop = Backstop::of(&limit, &config.traffic, &host_link, &owner)?;
    let put = backstop.put(|| {});
    if is_gone()? {
        return cni::all([put, backstop.take_back(is_gone)]);
    }
    put
}

/// Checks that the configured rate of each direction in `named` is at most the rate that the
/// kubelet allocated to the pod. Accepts any rate in a direction without an allocation.
///
/// # Errors
/// - Code 7: a rate is higher than the allocated one, or the limit of a direction with an
///   allocation is to be removed.
/// - Code 100: the record of the allocation cannot be read.
fn expect_allocated(request: &CheckRequest, named: &[Direction]) -> anyhow::Result<()> {
    if named.is_empty() {
        return Ok(());
    }
    let asked = Config::parse(&request.network)?;
    if asked.pod_resources.is_none() {
        return Ok(());
    }
    let record = record::read(&request.attachment.owner())?;
    for direction in named {
        let Some(allocated) = record.allocation.get(direction) else {
            continue;
        };
        let rate = asked.limits.get(direction).map(|it| &it.rate);
        if rate.is_none_or(|it| it > allocated) {
            let bits = |it: &BitsPerSecond| format!("{} bit/s", it.bytes() * 8);
            let rate = rate.map_or_else(|| "no limit".to_owned(), bits);
            let (word, allocated) = (direction.word(), bits(allocated));
            let reason = format!("{word}: {rate} is more than the pod's devices, {allocated}");
            return Err(Error::invalid(CHANGE_LIMITS, reason).into());
        }
    }
    Ok(())
}

struct Reload<'a> {
    limiting: Limiting<'a>,
    named: &'a [Direction],
    /// The record as it was before.
    record: Record,
    /// Whether the record of the pod's allocation is lost or never existed. The configured rates
    /// may then exceed the allocation, so RELOAD changes only the rates of the directions in
    /// `changeLimits`.
    may_exceed: bool,
}

impl Reload<'_> {
    /// Sets, changes or removes the limit of a direction, as `asked` and `changeLimits` request.
    fn direction(&self, direction: Direction, asked: Option<&Asked>) -> anyhow::Result<()> {
        let limiting = &self.limiting;
        let is_named = self.named.contains(&direction);
        if !self.named.is_empty() && !is_named {
            return Ok(());
        }
        let Some(asked) = asked else {
            let removed = is_named.then(|| limiting.remove(direction));
            return removed.unwrap_or(Ok(())).context(UNFINISHED);
        };
        let is_egress = direction == Direction::Egress;
        if is_egress && !is_named && !self.has_egress_limit()? {
            return Ok(());
        }
        let limit = limiting.limit(asked)?;
        if is_egress && !self.record.limits_egress {
            let record = Record {
                limits_egress: true,
                ..self.record.clone()
            };
            let written = record::write(&limiting.request.attachment.owner(), &record);
            or_note(written, "the agent does not restore this limit");
        }
        let changed = complete(|undo| match (is_named, self.may_exceed) {
            (true, _) => limiting.set(direction, &limit, undo),
            (false, false) => limiting.change(direction, &limit, undo),
            (false, true) if is_egress => limiting.put_backstop(&limiting.backstop(&limit)?, undo),
            (false, true) => Ok(()),
        });
        let changed = changed.context(UNFINISHED);
        if !is_egress {
            return changed;
        }
        if changed.is_err() {
            return cni::all([changed, self.after_failure(&limit, is_named)]);
        }
        if is_named {
            limiting.delete_ifb().context(UNFINISHED)?;
        }
        self.expect_lasting(&limit)
    }

    /// Returns whether the sandbox has an egress limit, or had one that the agent has to restore.
    fn has_egress_limit(&self) -> anyhow::Result<bool> {
        let held = self.limiting.pair.place(Direction::Egress).held();
        Ok(self.record.limits_egress
            || held.is_ok_and(|it| it.is_own())
            || self.limiting.find_ifb()?.is_some())
    }

    /// After a failed change of the egress limit, restores the backstop: root in the sandbox can make
    /// the kernel refuse a change of the qdisc, and the backstop holds alone. If `changeLimits` named
    /// the change, the former limit holds instead. Then forgets the record if RELOAD made it.
    fn after_failure(&self, limit: &Limit, is_named: bool) -> anyhow::Result<()> {
        if !is_named {
            let restored = self.limiting.backstop(limit)?.put(|| {});
            return cni::all([restored, self.expect_lasting(limit)]);
        }
        if self.record.limits_egress {
            return Ok(());
        }
        record::write(&self.limiting.request.attachment.owner(), &self.record)
    }

    /// Checks that no concurrent DEL has retired the record. If one has, removes the backstop that
    /// RELOAD added, and fails.
    ///
    /// If RELOAD itself has made the record, a concurrent DEL may have run this plugin before that.
    /// So this function then waits up to two seconds ([`REST_OF_A_DEL`]) for the deletion of the
    /// veth pair, which another plugin of the chain deletes in such a DEL.
    ///
    /// # Errors
    /// There is no record any more, or the kernel refuses a request.
    fn expect_lasting(&self, limit: &Limit) -> anyhow::Result<()> {
        let Limiting { pair, request, .. } = &self.limiting;
        let owner = request.attachment.owner();
        let is_recorded = record::read(&owner)?.limits_egress;
        let mut is_over = self.record.limits_egress && !is_recorded;
        if !self.record.limits_egress {
            cni::step("wait for a concurrent DEL");
            is_over = (pair.host).is_gone_within(pair.host_link.index, REST_OF_A_DEL);
            if is_over {
                record::files().retire(&owner).remove()?;
            }
        }
        let is_gone = || anyhow::Ok(is_over || is_recorded && !record::read(&owner)?.limits_egress);
        if !is_gone()? {
            return Ok(());
        }
        self.limiting.backstop(limit)?.take_back(is_gone)?;
        bail!("{} was deleted meanwhile", request.attachment)
    }
}

/// Calls `change` and returns its value. If `change` fails, runs the rollback steps that it added.
fn complete<'a, T>(change: impl FnOnce(&mut Undo<'a>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut undo = Undo::default();
    let changed = change(&mut undo)?;
    undo.keep();
    Ok(changed)
}

const UNFINISHED: &str =
    "change a limit, which has its old or its new rate now; repeat the call to complete the change";

/// Time that a DEL may take from the end of this plugin to the deletion of the veth pair by another
/// plugin of the chain.
const REST_OF_A_DEL: Duration = Duration::from_secs(2);
