//! Applies, compares, restores and removes the desired state of attachments.

use std::net::IpAddr;

use attach::coded;
use cni::{Error, note};
use nft::{Change, Connection, Element, Family, Table, supported};

use crate::config::{IngressPolicy, Mark};
use crate::desired::{Desired, is_member, unneeded};
use crate::legacy::Legacy;
use crate::record::{self, Earlier};
use crate::table::{ISOLATED_MEMBERS, address_sets, bridge_sets, frames, table};
use crate::{CHAIN, Config};

impl Desired {
    /// Installs the desired state. Its elements replace those of other attachments with the same
    /// addresses. Returns the replaced elements.
    ///
    /// The function installs the plugin's table before the rules that accept packets with the
    /// fwmark. The table clears the fwmark of arriving packets. Without the table, these rules
    /// would accept any packet that arrives with the fwmark.
    ///
    /// # Errors
    /// - Code 11: other processes keep changing the rules.
    /// - Code 100: the kernel refuses a request.
    pub fn install(&self) -> anyhow::Result<Vec<Element>> {
        let connection = Connection::open()?;
        let replaced = self.update(&connection, |_| true)?;
        for legacy in self.legacy.iter().filter(|it| it.is_in_use()) {
            if !connection.has_chain(&self.table, &legacy.note())? {
                self.reach(&connection, legacy)?;
            }
        }
        connection.close();
        Ok(replaced)
    }

    /// Adds the missing parts of the desired state. Another attachment may have the permission for
    /// one of the addresses now. If that attachment is in `earlier`, it had the address before this
    /// attachment, so this one takes the permission over, as ADD did. If it is not in `earlier`, it
    /// took the address over later, and keeps the permission.
    ///
    /// # Errors
    /// As [`Self::install`].
    pub fn restore(&self, earlier: &[Earlier]) -> anyhow::Result<()> {
        let connection = Connection::open()?;
        self.update(&connection, |existing| {
            earlier.iter().any(|it| it.owner == existing.owner)
        })?;
        let mut legacy = self.legacy.iter().filter(|it| it.is_in_use());
        legacy.try_for_each(|it| self.reach(&connection, it))
    }

    /// Adds the elements whose key is free, or whose existing element `may_replace` accepts, then
    /// the rules that accept packets with the fwmark. Returns the replaced elements.
    fn update(
        &self,
        connection: &Connection,
        may_replace: impl Fn(&Element) -> bool,
    ) -> anyhow::Result<Vec<Element>> {
        let mut replaced = Vec::new();
        for (table, elements) in self.parts() {
            let mut change = Change::default();
            let updated = connection.update(&table, || {
                let existing = connection.holders(&table, elements)?;
                let all = elements.iter().cloned().zip(existing);
                let meant = all.filter(|(_, it)| it.as_ref().is_none_or(&may_replace));
                let (add, existing): (_, Vec<_>) = meant.unzip();
                change = Change::of(existing.into_iter().flatten().collect(), add);
                Ok::<_, nft::Error>(change.clone())
            });
            let updated = updated.map_err(coded)?;
            updated.warning(&table).iter().for_each(note);
            let deleted = change.delete.into_iter();
            replaced.extend(deleted.filter(|it| !elements.contains(it)));
        }
        for required in &self.required {
            connection.ensure_required(required).map_err(coded)?;
        }
        Ok(replaced)
    }

    /// Adds the rules of `legacy` to legacy iptables. Also adds a marker chain to the plugin's
    /// table, which shows later ADDs that the rules exist. If the program of legacy iptables cannot
    /// add the rules, the function logs the failure on standard error and succeeds, because
    /// containers may not need these rules.
    fn reach(&self, connection: &Connection, legacy: &Legacy) -> anyhow::Result<()> {
        if let Err(error) = legacy.insert() {
            note(unreached(&error));
            return Ok(());
        }
        let mut table = self.table.clone();
        table.chains.push(legacy.note_chain());
        let updated = connection.update(&table, || Ok::<_, nft::Error>(Change::default()));
        updated.map(drop).map_err(coded)
    }

    /// Returns a message for each change that [`Self::restore`] would make for the attachment with the
    /// tag `owner`. Does not compare the rules of legacy iptables.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn differences(&self, owner: &str) -> anyhow::Result<Vec<String>> {
        let connection = Connection::open()?;
        let mut found = Vec::new();
        for (table, elements) in self.parts() {
            if connection.differences(&table, elements)?.is_empty() {
                continue;
            }
            let meant = not_taken_over(&connection, (&table, elements), owner)?;
            found.extend(connection.differences(&table, &meant)?);
        }
        for required in &self.required {
            found.extend(connection.missing_required(required)?);
        }
        Ok(found)
    }
}

/// Returns those of `elements` that no attachment has taken over from the one with the tag `owner`.
fn not_taken_over(
    connection: &Connection,
    (table, elements): (&Table, &[Element]),
    owner: &str,
) -> anyhow::Result<Vec<Element>> {
    if !connection.exists(table)? {
        return Ok(elements.to_vec());
    }
    let earlier = record::earlier(owner);
    let is_later =
        |owner: &str| earlier.iter().all(|it| it.owner != owner) && record::files().has(owner);
    let all = elements.iter().zip(connection.holders(table, elements)?);
    let meant = all.filter(|(wanted, holder)| {
        let holder = holder.as_ref().filter(|it| it.owner != wanted.owner);
        holder.is_none_or(|it| !is_later(&it.owner))
    });
    Ok(meant.map(|it| it.0.clone()).collect())
}

/// Removes the elements of the owners for which `is_stale` returns true. Then removes the shared
/// elements of bridges that no attachment needs any more ([`unneeded`]). Returns the owners of the
/// removed elements. The rules stay, because without elements they mark no packet.
///
/// # Errors
/// The kernel refuses a request. A missing table or kernel feature counts as success.
pub(crate) fn remove(is_stale: impl Fn(&str) -> bool) -> anyhow::Result<Vec<String>> {
    let Some(connection) = Connection::open_if_supported()? else {
        return Ok(Vec::new());
    };
    let table = table(Mark::DEFAULT);
    let removed = || {
        let all = connection.elements_owned(&table, |_| true)?;
        let (stale, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| is_stale(&it.owner));
        // ADD adds an attachment's member element before its port elements. So if there are stale
        // elements but no member element, there are no stale ports to remove. If there is no stale
        // element at all, an operator may have flushed this table but not the table with the ports,
        // so the function looks for stale ports.
        if stale.is_empty() || stale.iter().any(|it| it.set == ISOLATED_MEMBERS) {
            // The kernel may not support tables of the family `bridge`, which have the ports.
            supported(connection.delete(&frames(), &is_stale))?;
        }
        let removed = connection.delete_known(&table, &stale)?;
        // If this removal removed a member, a concurrent removal may have removed the last other
        // member of the bridge. So this function reads the elements again. Of the two processes,
        // the one that reads last finds the bridge without members and removes the shared elements.
        let left = if stale.iter().any(is_member) {
            connection.elements(&bridge_sets())?
        } else {
            others
        };
        if !unneeded(&table, &left).is_empty() {
            prune(&connection)?;
        }
        Ok::<_, nft::Error>(removed)
    };
    let removed = supported(removed()).map_err(coded)?.unwrap_or_default();
    connection.close();
    let mut owners: Vec<_> = removed.into_iter().map(|it| it.owner).collect();
    owners.sort();
    owners.dedup();
    Ok(owners)
}

/// Returns whether an attachment still needs `shared`, an element that all attachments on one
/// bridge share ([`crate::is_shared`]).
///
/// # Errors
/// The kernel refuses a request.
pub fn is_needed(connection: &Connection, shared: &Element) -> Result<bool, nft::Error> {
    let sets = bridge_sets();
    let mut all = connection.elements(&sets)?;
    all.push(shared.clone());
    Ok(!unneeded(&sets, &all).contains(shared))
}

/// Removes the rules that the Go plugin added to iptables for these addresses of a container.
///
/// # Errors
/// The kernel refuses a request. A missing rule or kernel feature counts as success.
pub(crate) fn delete_accept_rules(config: &Config, addresses: &[IpAddr]) -> anyhow::Result<()> {
    let Some(connection) = Connection::open_if_supported()? else {
        return Ok(());
    };
    for family in [Family::Ipv4, Family::Ipv6] {
        let is_of = |it: &&IpAddr| it.is_ipv4() == (family == Family::Ipv4);
        let addresses: Vec<_> = addresses.iter().filter(is_of).copied().collect();
        if addresses.is_empty() {
            continue;
        }
        supported(connection.delete_accept_rules(family, CHAIN, &addresses)).map_err(coded)?;
        let legacy = Legacy::new(family, config);
        if legacy.is_in_use() {
            let addresses = addresses.iter().map(ToString::to_string);
            addresses.for_each(|it| legacy.remove_admission(&it));
        }
    }
    connection.close();
    Ok(())
}

/// Restores the permission of attachments that had an address before another attachment: adds each
/// of `elements` to the sets of addresses, unless another attachment has the permission for its
/// address. Does nothing if the kernel has no netfilter, or if another program has deleted the table.
///
/// # Errors
/// - Code 11: other processes keep changing the rules.
/// - Code 100: the kernel refuses a request.
pub(crate) fn hand_back(elements: &[Element]) -> anyhow::Result<()> {
    let Some(connection) = Connection::open_if_supported()? else {
        return Ok(());
    };
    let sets = address_sets();
    let updated = connection.update(&sets, || {
        if !connection.exists(&sets)? {
            return Ok(Change::default());
        }
        let holders = connection.holders(&sets, elements)?;
        let free = elements.iter().zip(holders).filter(|it| it.1.is_none());
        let free = free.map(|it| it.0.clone()).collect();
        Ok::<_, nft::Error>(Change::of(Vec::new(), free))
    });
    updated.map(drop).map_err(coded)
}

/// Removes the shared elements of bridges that no attachment needs any more ([`unneeded`]).
fn prune(connection: &Connection) -> Result<(), nft::Error> {
    let sets = bridge_sets();
    let updated = connection.update(&sets, || {
        let all = connection.elements(&sets)?;
        Ok::<_, nft::Error>(Change::of(unneeded(&sets, &all), Vec::new()))
    });
    updated.map(drop)
}

/// Checks by a dry run whether the kernel supports what ADD needs. Logs on standard error if legacy
/// iptables is in use but its program is missing.
///
/// # Errors
/// Code 50: the kernel does not support it, or this process has no access to `nf_tables`.
pub(crate) fn dry_run(config: &Config) -> Result<(), Error> {
    let is_isolating = config.ingress_policy == IngressPolicy::Isolated;
    let frames = is_isolating.then(frames);
    attach::dry_run([table(config.mark)].into_iter().chain(frames))?;
    let families = [Family::Ipv4, Family::Ipv6].map(|it| Legacy::new(it, config));
    for legacy in families.iter().filter(|it| it.is_in_use()) {
        legacy
            .probe()
            .unwrap_or_else(|error| note(unreached(&error)));
    }
    Ok(())
}

fn unreached(error: &anyhow::Error) -> String {
    format!(
        "legacy iptables has a table filter, and what its FORWARD chain drops stays dropped: {error:#}"
    )
}
