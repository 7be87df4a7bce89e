//! Guards the node's 127.0.0.0/8 against neighbours while the agent runs, in the place of portmap's
//! `IPsec` policies, which cost each packet to the host time (CVE-2020-8558).

use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use cni::{note, note_failure};
use netlink::PolicyEvents;
use parking_lot::Mutex;
use portmap::LocalnetGuard;

/// The guard of 127.0.0.0/8; `None` while the agent does not hold it. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Guard(Arc<Mutex<Option<LocalnetGuard>>>);

impl Guard {
    /// Takes the guard. From now on, removes portmap's policies whenever a plugin or another agent
    /// adds them. Returns whether the agent holds the guard. If the kernel refuses it, the policies
    /// stay, and the reason is on standard error.
    pub fn take(&self) -> bool {
        let taken = self.try_take();
        note_failure(taken.context(
            "repair: the agent cannot guard 127.0.0.0/8, so IPsec policies of portmap guard it; Linux 5.12 is needed",
        ));
        self.0.lock().is_some()
    }

    /// Restores portmap's policies if they are needed, and releases the guard.
    pub fn release(&self) {
        let released = self.0.lock().take().map_or(Ok(()), LocalnetGuard::release);
        note_failure(released.context("repair: restore IPsec policies of portmap"));
    }

    fn try_take(&self) -> anyhow::Result<()> {
        let events = PolicyEvents::open()?;
        *self.0.lock() = Some(LocalnetGuard::take()?);
        let Some(events) = events else {
            return Ok(());
        };
        let guard = self.clone();
        thread::spawn(move || {
            if let Err(error) = guard.remove_policies(&events) {
                note!("repair: IPsec policies of portmap stay: {error:#}");
            }
        });
        Ok(())
    }

    /// Removes portmap's policies, now and after each change of policies, until the guard is
    /// released.
    fn remove_policies(&self, events: &PolicyEvents) -> anyhow::Result<()> {
        loop {
            match &mut *self.0.lock() {
                Some(guard) => guard.remove_policies()?,
                None => return Ok(()),
            }
            events.receive()?;
        }
    }
}
