//! ADD: one address of every range set.

use std::collections::HashSet;
use std::net::IpAddr;

use anyhow::{bail, ensure};
use cni::result::IpConfig;
use cni::{AddRequest, AddResult, Attachment, Undo, note};
use nix::unistd::getppid;

use crate::allocate;
use crate::config::Config;
use crate::range::RangeSet;
use crate::request;
use crate::store::{Lease, Reservation, Store};

/// Leases an address of every range set, an asked-for one where one is asked for.
///
/// # Errors
/// The configuration makes no sense, the attachment holds addresses already, a set is
/// exhausted, or the files cannot be written. Nothing is leased then.
pub(crate) fn add(request: &AddRequest) -> anyhow::Result<AddResult> {
    let parent = getppid();
    let config = Config::parse(&request.network)?;
    let requested = request::assign(&config.sets, &request::requested(request)?)?;
    let dns = config.dns()?;
    let store = Store::open(&config.place, &request.network.name)?;
    // Whoever called may have been killed while this process waited for the lock; then
    // nobody would ever give the addresses back.
    ensure!(
        getppid() == parent,
        "the process that asked for the lease is gone"
    );
    let leases = store.leases()?;
    expect_none_held(&request.attachment, &leases)?;
    let mut taken: HashSet<_> = leases.into_iter().map(|lease| lease.address).collect();
    let mut undo = Undo::default();
    let mut ips = Vec::with_capacity(config.sets.len());
    for (index, (set, asked)) in config.sets.iter().zip(requested).enumerate() {
        let choice = Choice {
            store: &store,
            set,
            taken: &mut taken,
        };
        let address = match asked {
            Some(address) => choice.asked(address, request)?,
            None => choice.next(index, request)?,
        };
        let released = &store;
        undo.push("release the lease", move || released.release(address));
        remember(&store, index, address);
        ips.extend(ip_config(set, address));
    }
    undo.keep();
    Ok(AddResult {
        ips,
        routes: config.routes,
        dns,
        ..AddResult::default()
    })
}

/// An asked-for address counts for the round robin, too, as it does in the reference.
///
/// Without it only the next turn is lost, which is no reason to refuse an address.
fn remember(store: &Store, set: usize, address: IpAddr) {
    if let Err(error) = store.set_last_reserved(set, address) {
        note(format_args!("{error:#}; going on without it"));
    }
}

fn expect_none_held(attachment: &Attachment, leases: &[Lease]) -> anyhow::Result<()> {
    let held = leases.iter().filter(|it| it.holder.may_be(attachment));
    let held: Vec<_> = held.map(|lease| lease.address.to_string()).collect();
    if held.is_empty() {
        return Ok(());
    }
    bail!(
        "{attachment} holds {} already; DEL it first",
        held.join(", ")
    )
}

/// One range set that has to give an address.
struct Choice<'a> {
    store: &'a Store,
    set: &'a RangeSet,
    taken: &'a mut HashSet<IpAddr>,
}

impl Choice<'_> {
    fn asked(self, address: IpAddr, request: &AddRequest) -> anyhow::Result<IpAddr> {
        match self.store.reserve(address, &request.attachment)? {
            Reservation::Made => Ok(address),
            Reservation::Taken => {
                let holder = self.store.holder(address)?;
                let holder = holder.map_or_else(|| "nobody".into(), |it| it.to_string());
                bail!("requested address {address} is held by {holder}")
            }
        }
    }

    fn next(self, index: usize, request: &AddRequest) -> anyhow::Result<IpAddr> {
        let last = self.store.last_reserved(index);
        while let Some(address) = allocate::next_free(self.set, last, |it| self.taken.contains(&it))
        {
            if self.store.reserve(address, &request.attachment)? == Reservation::Made {
                return Ok(address);
            }
            // Something that is no lease bears its name.
            self.taken.insert(address);
        }
        let held = self
            .taken
            .iter()
            .filter(|it| self.set.range_of(**it).is_some());
        let held = held.filter(|it| !self.set.is_gateway(**it)).count();
        let size = self.set.size();
        bail!("no free address in {}: {held} of {size} are held", self.set)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Holder;

    #[test]
    fn attachment_that_holds_an_address_gets_no_other() {
        let attachment = Attachment {
            network: "pods".parse().unwrap(),
            container: "c1".parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        };
        let leases = |content: &str| {
            [Lease {
                address: "10.1.0.2".parse().unwrap(),
                holder: Holder::parse(content),
            }]
        };
        for held in ["c1\r\neth0", "c1"] {
            let error = expect_none_held(&attachment, &leases(held)).unwrap_err();
            assert!(error.to_string().contains("holds 10.1.0.2 already"));
        }
        for other in ["c1\r\neth1", "c2\r\neth0", ""] {
            expect_none_held(&attachment, &leases(other)).unwrap();
        }
    }
}
