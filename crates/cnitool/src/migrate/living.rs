//! Which attachments live, as far as a runtime's cache and the leases of host-local tell.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Context as _;
use sha2::{Digest as _, Sha512};

use super::Mark;
use crate::cache::Cache;
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
    /// has a lease in the directory that is host-local's by default.
    ///
    /// # Errors
    /// Either cannot be read, or a file of the cache is no entry: whose it is cannot be told.
    pub fn read(settings: &Settings) -> anyhow::Result<Self> {
        let (mut living, mut cached) = (Self::default(), BTreeSet::new());
        for entry in Cache::new(&settings.cache_directory).entries()? {
            let (attachment, entry) = entry.context("tell what lives")?;
            let network = attachment.network.to_string();
            let container = attachment.container.to_string();
            if may_exist(entry.netns()) {
                living.insert((&network, &container, attachment.interface.as_str()));
            }
            cached.insert((network, container));
        }
        let networks = settings.cache_directory.join("networks");
        for network in names(&networks)? {
            let directory = networks.join(&network);
            for address in names(&directory)? {
                let Some((container, interface)) = holder(&directory.join(address))? else {
                    continue;
                };
                if !cached.contains(&(network.clone(), container.clone())) {
                    living.insert((&network, &container, &interface));
                }
            }
        }
        Ok(living)
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

/// The container and interface that a lease is of; old ones say only the container.
fn holder(file: &Path) -> anyhow::Result<Option<(String, String)>> {
    let name = file.file_name().and_then(OsStr::to_str);
    if name.is_none_or(|name| name.parse::<IpAddr>().is_err()) {
        return Ok(None);
    }
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("read {}", file.display()))?,
    };
    let mut lines = text.lines().map(str::trim);
    let container = lines.next().filter(|it| !it.is_empty());
    let interface = lines.next().unwrap_or("eth0");
    Ok(container.map(|container| (container.to_owned(), interface.to_owned())))
}

fn names(directory: &Path) -> anyhow::Result<Vec<String>> {
    let reading = || format!("read {}", directory.display());
    let entries = match fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.with_context(reading)?,
    };
    let names =
        entries.map(|entry| Ok(entry.with_context(reading)?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
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
