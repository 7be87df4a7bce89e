//! Which attachments live, as far as a runtime's cache and the leases of host-local tell.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use cni::{Attachment, InterfaceName};
use sha2::{Digest as _, Sha512};

use super::Mark;
use crate::cache::Cache;
use crate::node::{self, Configuration, Lease, Place};
use crate::sandbox::may_exist;
use crate::settings::Settings;

/// Whatever must stay.
#[derive(Debug, Default)]
pub struct Living {
    chains: Vec<String>,
    containers: BTreeSet<String>,
    instances: BTreeSet<String>,
}

impl Living {
    /// An attachment lives if its result is cached and its sandbox exists, or if nothing is cached of it and it
    /// has a lease: in `networks` beside the cache, where host-local keeps leases by default, or where a network
    /// has it keep them.
    ///
    /// # Errors
    /// One of them cannot be read, or a file there does not tell whose it is.
    pub fn read(settings: &Settings) -> anyhow::Result<Self> {
        let mut attached = Vec::new();
        for entry in Cache::new(&settings.cache_directory).entries()? {
            let (attachment, entry) = entry.context("tell what lives")?;
            attached.push((attachment, may_exist(entry.netns())));
        }
        let mut places = node::places(&Configuration::read(settings)?);
        places.insert(Place {
            directory: settings.cache_directory.join("networks"),
        });
        let leases = node::leases(&places)?;
        for lease in leases.iter().filter(|it| it.holder.is_none()) {
            let is_empty = lease.path.metadata().is_ok_and(|it| it.len() == 0);
            ensure!(is_empty, "tell whose lease {} is", lease.path.display());
        }
        let attached = attached.iter().map(|(it, is_alive)| (it, *is_alive));
        Ok(Self::of(attached, &leases))
    }

    /// As [`Self::read`] has it, of cached attachments, with whether their sandboxes exist, and of leases.
    pub fn of<'a>(
        attached: impl IntoIterator<Item = (&'a Attachment, bool)>,
        leases: &[Lease],
    ) -> Self {
        let (mut living, mut cached) = (Self::default(), BTreeSet::new());
        for (attachment, is_alive) in attached {
            let network = attachment.network.as_str();
            let container = attachment.container.as_str();
            if is_alive {
                living.insert((network, container, attachment.interface.as_str()));
            }
            cached.insert((network, container));
        }
        for lease in leases {
            let Some((container, interface)) = &lease.holder else {
                continue;
            };
            let names = (lease.network.as_str(), container.as_str());
            let interface = interface.as_ref().map_or("eth0", InterfaceName::as_str);
            if !cached.contains(&names) {
                living.insert((names.0, names.1, interface));
            }
        }
        living
    }

    /// The remnant that bears this mark is of one of them.
    pub fn has(&self, mark: &Mark) -> bool {
        match mark {
            Mark::Chain(digits) => self.chains.iter().any(|it| it.starts_with(digits)),
            Mark::Container(id) => self.containers.contains(id),
            Mark::Instance(digits) => self.instances.contains(digits),
        }
    }

    fn insert(&mut self, (network, container, interface): (&str, &str, &str)) {
        self.chains.push(digest(&format!("{network}{container}")));
        self.containers.insert(container.to_owned());
        let instance = digest(&format!("{interface}:{container}"));
        let parts = [digest(network), instance];
        let parts = parts.map(|it| it.chars().take(16).collect::<String>());
        self.instances.insert(parts.join("-"));
    }
}

fn digest(text: &str) -> String {
    let digest = Sha512::digest(text);
    let bytes = digest.iter();
    bytes.fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf podsa | sha512sum`, of which Debian's reference took what is asked for here.
    #[test]
    fn marks_are_those_of_the_reference() {
        let mut living = Living::default();
        living.insert(("pods", "a", "eth0"));
        assert!(living.has(&Mark::Chain("64e2b30124778559e7bbb4eb".into())));
        assert!(living.has(&Mark::Chain("64e2b30124778559e7bbb".into())));
        assert!(!living.has(&Mark::Chain("64e2b30124778559e7bbb4ec".into())));
        assert!(living.has(&Mark::Container("a".into())));
        assert!(!living.has(&Mark::Container("b".into())));
    }
}
