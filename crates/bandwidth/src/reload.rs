//! RELOAD, a verb of this suite: restores the backstop, and changes limits.
//!
//! A caller may repeat RELOAD with a configuration that is older than the present limits. So RELOAD
//! creates and removes limits only in the directions that the key `changeLimits` names. Without
//! that key, it only changes the rates of limits that this plugin set.

use std::time::Duration;

use anyhow::{Context as _, bail};
use cni::{CheckRequest, Error, Undo};
use netlink::{Connection, Link, Monitor, Wait};
use serde::Deserialize;
use tc::{BitsPerSecond, Limit, LinkEgress};

use crate::allocation::Allocation;
use crate::asked::Asked;
use crate::config::Config;
use crate::limiting::{CHANGE_LIMITS, Limiting};
use crate::resource::Direction;
use crate::{del, host_link, record};

/// Makes the limits of the directions in `changeLimits` equal to the configuration, and leaves the
/// other direction as it is. Without that key, changes the rates of limits that this plugin set,
/// and restores the backstop. An attachment that the Go plugin limited gets a backstop, too.
///
/// A concurrent DEL or GC deletes the ifb, and then looks for elements of the backstop once more.
/// If this function adds its elements after that, it finds no ifb afterwards and removes the
/// elements itself. So no elements of a deleted attachment remain.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 7: the rate of a direction in `changeLimits` exceeds the pod's allocation.
/// - Code 7: a limit is to be removed, but the Go plugin set it.
/// - Code 100: the veth pair or the ifb does not exist, another program set a qdisc there, or the
///   kernel refuses a request. Each limit then has its old or its new rate.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let named = request.network.runtime_config::<Keys>()?.change_limits;
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

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    /// The directions in which limits are added, changed or removed. Only `cnitool limit` sends
    /// this key.
    change_limits: Vec<Direction>,
}

/// Checks that the configured rate of each direction in `named` is at most the rate that the
/// scheduler allocated to the pod.
///
/// # Errors
/// Code 7 with both rates; the record of the allocation cannot be read.
fn expect_allocated(request: &CheckRequest, named: &[Direction]) -> anyhow::Result<()> {
    let asked = Config::parse(&request.network)?;
    if named.is_empty() || asked.pod_resources.is_none() {
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
    /// Checks before the first change that this plugin can change the limits of all named
    /// directions, and that it set those that are to be removed.
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

    /// Returns whether this call leaves the limit of `direction` as it is: `cnitool limit` changes
    /// only the directions that it names.
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
            // A DEL may have deleted the ifb that was found.
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

    /// Waits for [`REST_OF_A_DEL`], and deletes the new ifb if the veth pair disappears meanwhile.
    ///
    /// A concurrent DEL may have called this plugin before the ifb existed, so it left the ifb.
    /// This function recognises such a DEL by the later deletion of the veth pair, which another
    /// plugin of the chain does.
    fn expect_lasting(&self, ifb: &Link) -> anyhow::Result<()> {
        let Limiting {
            host, host_link, ..
        } = self.limiting;
        cni::step("wait for a concurrent DEL");
        let wait = Wait {
            link: host_link.index,
            what: "a deletion",
            deadline: REST_OF_A_DEL,
        };
        let waited = Monitor::new().wait_for_link(host, &wait, |_: &Link| false);
        if waited.is_err_and(|error| error.is_not_found()) {
            del::delete_all(host, std::slice::from_ref(ifb))?;
        }
        Ok(())
    }

    /// Removes the backstop again if a concurrent DEL has deleted the ifb.
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

/// Calls `change`, and its rollback if it fails.
fn complete<'a, T>(change: impl FnOnce(&mut Undo<'a>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut undo = Undo::default();
    let changed = change(&mut undo)?;
    undo.keep();
    Ok(changed)
}

const UNFINISHED: &str = "a limit did not change: it has its old or its new rate, and the same call completes the change";

/// Time in which a DEL that has called this plugin calls the plugin that deletes the veth pair.
const REST_OF_A_DEL: Duration = Duration::from_secs(2);
