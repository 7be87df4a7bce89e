//! Records of what chained plugins change in sandboxes: one file for each attachment. The objects
//! there do not show their owner, and GC gets no path of a sandbox.

use std::path::Path;

use anyhow::Context as _;
use cni::{DelRequest, Error, GcRequest, note, note_failure};
use netlink::Connection;
use netns::Netns;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{OwnerFiles, SandboxLock, Witness, Writing};

/// The record of an attachment: the sandbox, and what ADD changes there.
pub trait SandboxRecord: Serialize + DeserializeOwned {
    /// Directory of all records.
    const DIRECTORY: &'static str;

    /// What [`Self::revert`] does, for the log.
    const STEP: &'static str;

    /// Returns the sandbox.
    fn sandbox(&self) -> &Witness;

    /// Reverts the changes in the sandbox, to which `connection` leads. The caller has locked it.
    ///
    /// # Errors
    /// The failures of all steps together.
    fn revert(&self, connection: &Connection) -> anyhow::Result<()>;

    /// Reverts what an ADD without a record, such as one of the Go plugin, changed in the sandbox, to
    /// which `connection` leads. The caller has locked it.
    ///
    /// # Errors
    /// The failures of all steps together.
    fn revert_unrecorded(request: &DelRequest, connection: &Connection) -> anyhow::Result<()>;

    /// Returns the directory of all records.
    fn files() -> OwnerFiles {
        OwnerFiles(Self::DIRECTORY.into())
    }

    /// Reads `text`, the record of the attachment `owner`. Returns `None`, and reports this on
    /// standard error, if `text` is not a record.
    fn read(owner: &str, text: &str) -> Option<Self> {
        let record = serde_json::from_str(text);
        if let Err(error) = &record {
            let directory = Self::DIRECTORY;
            note(format_args!(
                "the record of {owner} in {directory} is invalid ({error}); DEL leaves what it lists \
                 in the sandbox"
            ));
        }
        record.ok()
    }

    /// Returns the record of an earlier ADD of the attachment `owner` in the sandbox to which
    /// `connection` leads, even if a DEL has retired it.
    fn of_earlier_add(owner: &str, connection: &Connection) -> Option<Self> {
        let text = Self::files().find_also_retired(owner)?;
        let is_here = |it: &Self| {
            let sandbox = it.sandbox();
            sandbox
                .is_of(connection, &sandbox.netns)
                .unwrap_or_default()
        };
        Self::read(owner, &text).filter(is_here)
    }

    /// Rollback: gives the attachment `owner` its `former` record again, if it had one.
    ///
    /// # Errors
    /// The record cannot be written or removed.
    fn restore(owner: &str, former: Option<Self>) -> anyhow::Result<()> {
        match former {
            Some(record) => record.write(owner),
            None => Self::files().retire(owner).remove(),
        }
    }

    /// Writes the record of the attachment with the tag `owner`.
    ///
    /// # Errors
    /// The record cannot be written.
    fn write(&self, owner: &str) -> anyhow::Result<()> {
        Self::files().write(owner, &serde_json::to_string(self)?, Writing::All)
    }

    /// DEL: reverts the changes of the attachment and removes its record.
    ///
    /// DEL only reports what the kernel refuses to change in the sandbox, because a process there
    /// could otherwise make DEL fail for ever.
    ///
    /// # Errors
    /// The sandbox cannot be entered, the kernel does not answer, or the record cannot be read or
    /// removed. The record stays.
    fn del(request: &DelRequest) -> anyhow::Result<()> {
        cni::step(Self::STEP);
        let owner = request.attachment.owner();
        if Self::files().find_also_retired(&owner).is_none() {
            note_failure(find_and_revert::<Self>(request));
        }
        remove::<Self>(&owner, request.netns.as_deref())
    }

    /// GC: does the same for the attachments of this network that the runtime does not list.
    ///
    /// # Errors
    /// A sandbox cannot be entered, or its record cannot be read or removed. This record stays.
    fn gc(request: &GcRequest) -> anyhow::Result<()> {
        cni::step(Self::STEP);
        let is_stale = request.stale();
        let owners = Self::files().owners()?;
        cni::all(owners.iter().filter(|it| is_stale(it)).map(|owner| {
            note(format_args!(
                "revert what {owner}, which the runtime does not list, changed in its sandbox"
            ));
            remove::<Self>(owner, None)
        }))
    }
}

/// Calls [`SandboxRecord::revert_unrecorded`] in the sandbox, if there is one.
fn find_and_revert<R: SandboxRecord>(request: &DelRequest) -> anyhow::Result<()> {
    let netns = request.netns.as_deref();
    let opened = netns.map(Connection::open_if_present).transpose()?;
    let Some((path, (namespace, inside))) = netns.zip(opened.flatten()) else {
        return Ok(());
    };
    let interface = request.attachment.interface.as_str();
    let of_other = |owner: &String| {
        let text = R::files().find_also_retired(owner)?;
        R::read(owner, &text).filter(|it| it.sandbox().link == interface)
    };
    // After a DEL that is repeated, another attachment may have the interface of this name.
    for record in R::files().owners()?.iter().filter_map(of_other) {
        if record.sandbox().is_of(&inside, path)? {
            return Ok(());
        }
    }
    let connection = namespace.run(Connection::open_wary)??;
    let _lock = SandboxLock::take(&namespace)?;
    R::revert_unrecorded(request, &connection)
}

/// If the sandbox cannot be entered or locked, nothing is reverted, so the record stays. A process in
/// the sandbox can only cause a delay: it makes ADDs of the sandbox slow, which hold the lock.
fn remove<R: SandboxRecord>(owner: &str, netns: Option<&Path>) -> anyhow::Result<()> {
    let kept = || format!("revert changes in the sandbox of {owner}, whose record stays");
    let text = R::files().find_also_retired(owner);
    let record = text.and_then(|it| R::read(owner, &it));
    let entered = record.map(|it| it.sandbox().open(netns)).transpose();
    let Some((namespace, connection)) = entered.with_context(kept)?.flatten() else {
        return R::files().retire(owner).remove();
    };
    let _lock = SandboxLock::take(&namespace).with_context(kept)?;
    // An ADD that had the lock until now may have written another record.
    let retired = R::files().retire(owner);
    let record = retired.text().and_then(|it| R::read(owner, it));
    let reverted = record.map_or(Ok(()), |it| it.revert(&connection));
    let is_unanswered =
        |it: &anyhow::Error| it.downcast_ref().is_some_and(netlink::Error::is_unanswered);
    if reverted.as_ref().is_err_and(is_unanswered) {
        return reverted.with_context(kept);
    }
    note_failure(reverted);
    retired.remove()
}

/// Opens the sandbox at `netns`, and a wary connection in it.
///
/// # Errors
/// Code 4: there is no sandbox, or it cannot be entered.
pub fn enter(netns: &Path) -> anyhow::Result<(Netns, Connection)> {
    let namespace = Netns::open(netns).map_err(Error::sandbox)?;
    let opened = namespace.run(Connection::open_wary);
    let connection = opened.map_err(Error::sandbox)??;
    Ok((namespace, connection))
}
