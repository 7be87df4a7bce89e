//! ADD: one address of every range set.

use std::net::IpAddr;

use anyhow::{bail, ensure};
use cni::result::IpConfig;
use cni::{AddRequest, AddResult, Answer, Answered, Attachment, Undo, note};
use nix::unistd::getppid;

use crate::config::Config;
use crate::directory::Reservation;
use crate::lease::{Holder, Lease};
use crate::range::RangeSet;
use crate::request;
use crate::store::Store;
use crate::vacancy::Vacancy;

/// Leases an address of every range set; a requested address where the request names one.
///
/// Fails if the configuration is invalid, the attachment already holds addresses, a set is
/// exhausted, or the files cannot be written. Nothing is leased then.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let parent = getppid();
    let config = Config::parse(&request.network)?;
    let requested = request::assign(&config.sets, &request::requested(request)?)?;
    let dns = config.dns()?;
    cni::step("wait for the lock");
    let store = Store::open(&config.storage, &request.network.name)?;
    // The runtime may have killed the caller while this process waited for the lock. Then no DEL
    // would ever release the addresses.
    ensure!(
        getppid() == parent,
        "the process that asked for the lease is gone"
    );
    cni::step("lease addresses");
    expect_none_held(&store, &request.attachment)?;
    let mut vacancy = store.vacancy()?;
    let mut undo = Undo::default();
    let mut ips = Vec::with_capacity(config.sets.len());
    for (index, (set, asked)) in config.sets.iter().zip(requested).enumerate() {
        let choice = Choice {
            store: &store,
            set,
            holder: Holder::of(&request.attachment),
        };
        let lease = match asked {
            Some(address) => choice.asked(address)?,
            None => choice.next(store.last_reserved(index), &mut vacancy)?,
        };
        remember(&store, index, lease.address);
        ips.extend(ip_config(set, lease.address));
        let made_in = &store;
        undo.push("release the lease", move || made_in.cancel(&[lease]));
    }
    let answered = answer.give(&AddResult {
        ips,
        routes: config.routes,
        dns,
        ..AddResult::default()
    })?;
    undo.keep();
    Ok(answered)
}

/// Remembers the last address of a set. A requested address counts for the round robin, too, as it
/// does in the reference.
///
/// A failure only affects the next round robin, so it does not make ADD fail.
fn remember(store: &Store, set: usize, address: IpAddr) {
    if let Err(error) = store.set_last_reserved(set, address) {
        note(format_args!("{error:#}; going on without it"));
    }
}

fn expect_none_held(store: &Store, attachment: &Attachment) -> anyhow::Result<()> {
    let held = store.leases_of(attachment)?;
    let held: Vec<_> = held.iter().map(|lease| lease.address.to_string()).collect();
    ensure!(
        held.is_empty(),
        "{attachment} holds {} already; DEL it first",
        held.join(", ")
    );
    Ok(())
}

/// A range set that has to provide an address.
struct Choice<'a> {
    store: &'a Store,
    set: &'a RangeSet,
    holder: Holder,
}

impl Choice<'_> {
    fn asked(self, address: IpAddr) -> anyhow::Result<Lease> {
        let lease = self.lease(address);
        if self.store.reserve(&lease)? == Reservation::Made {
            return Ok(lease);
        }
        match self.store.lease(address)? {
            Some(Lease { holder, .. }) => bail!("requested address {address} is held by {holder}"),
            None => bail!("requested address {address} is taken by a file that names no container"),
        }
    }

    fn next(self, last: Option<IpAddr>, vacancy: &mut Vacancy<'_>) -> anyhow::Result<Lease> {
        while let Some(address) = vacancy.next_for_sure(self.set, last)? {
            let lease = self.lease(address);
            if self.store.reserve(&lease)? == Reservation::Made {
                return Ok(lease);
            }
            vacancy.correct(address)?;
        }
        Err(vacancy.exhaustion(self.set))
    }

    fn lease(&self, address: IpAddr) -> Lease {
        Lease {
            address,
            holder: self.holder.clone(),
        }
    }
}

fn ip_config(set: &RangeSet, address: IpAddr) -> Option<IpConfig> {
    let range = set.range_of(address)?;
    let address = ipnetwork::IpNetwork::new(address, range.subnet.prefix()).ok()?;
    Some(IpConfig {
        gateway: Some(range.gateway),
        ..IpConfig::of(address)
    })
}
