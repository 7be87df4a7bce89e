//! RELOAD, a verb of this suite: restores the backstop (the second egress limit in `nf_tables`) and
//! changes limits.
//!
//! A caller may repeat RELOAD with a configuration that is older than the present limits. So RELOAD
//! creates and removes limits only in the directions that the key `changeLimits` names. Without
//! that key, RELOAD changes only the rates of limits that this plugin set.

use std::time::Duration;

use anyhow::{Context as _, bail};
use cni::{CheckRequest, Error, Undo};
use netlink::{Connection, Link};
use tc::{BitsPerSecond, Limit, LinkEgress};

use crate::ifb::delete_all;
use crate::limiting::{CHANGE_LIMITS, Limiting};
use crate::record::Allocation;
use crate::resource::Direction;
use crate::{Asked, Config, host_link, record};

/// Sets, changes or removes the limits in the directions that the key `changeLimits` names, as
/// configured. A direction that the key does not name keeps its limit.
///
/// Without the key, changes the rates of limits that this plugin set, and restores the backstop
/// (the second egress limit in `nf_tables`). An attachment that the Go plugin limited gets a
/// backstop, too.
///
/// A concurrent DEL or GC deletes the ifb and then removes the backstop. If this function adds the
/// backstop after that, it then finds no ifb and removes the backstop itself. So no backstop of a
/// deleted attachment remains.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Codes 4 and 7: [`host_link::find`] does not find the veth pair.
/// - Code 7: the rate of a direction in `changeLimits` exceeds the pod's allocation.
/// - Code 7: a limit is to be removed, but the Go plugin set it.
/// - Code 100: the ifb does not exist, another program set a qdisc on a limited link, or the kernel
///   refuses a request. Each limit then has its old or its new rate.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    // The directions in which limits are added, changed or removed. Only `cnitool limit` sends it.
    let named: Vec<Direction> = request.network.key(CHANGE_LIMITS)?;
    let config = Config::of_attachment(request)?;
    expect_allocated(request, &named)?;
    request.chained()?;
    if config.is_idle() && named.is_empty() {
        return Ok(());
    }
    cni::step("find the pair");
    let host = Connection::open()?;
    let host_link = host_link::find(request, &host)?;
    let reload = Reload {
        limiting: Limiting {
            request,
            host: &host,
            host_link: &host_link,
            traffic: &config.traffic,
        },
        named: &named,
        may_exceed: config.pod_resources.is_some() && !record::exists(&request.attachment.owner()),
    };
    reload.expect_changeable(&config)?;
    cni::all([
        reload.egress(config.egress.as_ref()),
        reload.ingress(config.ingress.as_ref()),
    ])
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
    let Allocation { ingress, egress } = record::read(&request.attachment)?;
    for direction in named {
        let (asked, allocated) = match direction {
            Direction::Ingress => (&asked.ingress, ingress),
            Direction::Egress => (&asked.egress, egress),
        };
        let Some(allocated) = allocated else {
            continue;
        };
        let rate = asked.as_ref().map(|it| it.rate);
        if rate.is_none_or(|it| it > allocated) {
            let bits = |it: BitsPerSecond| format!("{} bit/s", it.bytes() * 8);
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
    /// Whether the record of the pod's allocation is lost or never existed. The configured rates
    /// may then exceed the allocation, so RELOAD changes only the rates of the directions in
    /// `changeLimits`.
    may_exceed: bool,
}

impl Reload<'_> {
    /// Checks that RELOAD can change or remove, as `config` requests, the limit of each direction
    /// in `changeLimits`. A limit that the Go plugin set can be changed, but not removed. This
    /// function itself changes nothing.
    fn expect_changeable(&self, config: &Config) -> anyhow::Result<()> {
        let check = |direction: &Direction| match direction {
            Direction::Ingress => self
                .limiting
                .expect_changeable_ingress(config.ingress.as_ref()),
            Direction::Egress => self
                .limiting
                .expect_changeable_egress(config.egress.as_ref()),
        };
        self.named.iter().try_for_each(check)
    }

    /// Returns whether RELOAD leaves the limit of `direction` as it is, because the key
    /// `changeLimits` names only the other direction.
    fn leaves(&self, direction: Direction) -> bool {
        !self.named.is_empty() && !self.named.contains(&direction)
    }

    fn ingress(&self, asked: Option<&Asked>) -> anyhow::Result<()> {
        let limiting = self.limiting;
        if self.leaves(Direction::Ingress) {
            return Ok(());
        }
        let limit = limiting.limit(asked)?;
        let changed = match (limit, self.named.contains(&Direction::Ingress)) {
            (Some(limit), true) => complete(|undo| limiting.ingress(&limit, undo)),
            (None, true) => limiting.remove_ingress(),
            (Some(_), false) if self.may_exceed => Ok(()),
            (Some(limit), false) => {
                let link_egress = LinkEgress::new(limiting.host, limiting.host_link);
                Ok(link_egress.change(&limit, limiting.traffic)?)
            }
            (None, false) => Ok(()),
        };
        changed.context(UNFINISHED)
    }

    fn egress(&self, asked: Option<&Asked>) -> anyhow::Result<()> {
        let limiting = self.limiting;
        if self.leaves(Direction::Egress) {
            return Ok(());
        }
        let is_named = self.named.contains(&Direction::Egress);
        let Some(limit) = limiting.limit(asked)? else {
            let removed = is_named.then(|| limiting.remove_egress());
            return removed.unwrap_or(Ok(())).context(UNFINISHED);
        };
        let ifb = limiting.find_ifb()?;
        if is_named {
            let made = complete(|undo| limiting.egress(&limit, undo));
            let made = made.context(UNFINISHED)?;
            // The ifb is new if there was none before, or if a DEL has deleted the previous one.
            if ifb.is_none_or(|it| it.index != made.index) {
                self.expect_lasting(&made)?;
            }
        } else {
            let attachment = &limiting.request.attachment;
            let none = || format!("{attachment} has no ifb; only ADD creates one");
            let ifb = ifb.with_context(none)?;
            let changed = if self.may_exceed {
                complete(|undo| limiting.put_backstop(&limit, undo))
            } else {
                complete(|undo| limiting.change_rate(&ifb, &limit, undo))
            };
            changed.context(UNFINISHED)?;
        }
        self.expect_present(&limit)
    }

    /// Waits up to two seconds ([`REST_OF_A_DEL`]). If the veth pair is deleted in this time,
    /// deletes the new ifb, too.
    ///
    /// A concurrent DEL may have run this plugin before the ifb existed, so that the ifb would
    /// remain. This function recognises such a DEL because another plugin of the chain then deletes
    /// the veth pair.
    fn expect_lasting(&self, ifb: &Link) -> anyhow::Result<()> {
        let Limiting {
            host, host_link, ..
        } = self.limiting;
        cni::step("wait for a concurrent DEL");
        if host.is_gone_within(host_link.index, REST_OF_A_DEL) {
            delete_all(host, std::slice::from_ref(ifb))?;
        }
        Ok(())
    }

    /// Checks that the ifb still exists. If a concurrent DEL has deleted it, removes the backstop
    /// that RELOAD added, and fails.
    ///
    /// # Errors
    /// There is no ifb, or the kernel refuses a request.
    fn expect_present(&self, limit: &Limit) -> anyhow::Result<()> {
        let is_gone = || Ok(self.limiting.find_ifb()?.is_none());
        if !is_gone()? {
            return Ok(());
        }
        if let Some(backstop) = self.limiting.backstop(limit) {
            backstop.take_back(is_gone)?;
        }
        bail!("{} was deleted meanwhile", self.limiting.request.attachment)
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
