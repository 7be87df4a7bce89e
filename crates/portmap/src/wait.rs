//! Waits until the DEL of another attachment has released a port. The kernel notifies the plugin of
//! deleted elements.
//!
//! The plugin holds no lock while it waits. With a lock, the DEL that it waits for, a GC or a
//! RELOAD could not run.

use std::slice;
use std::time::{Duration, Instant};

use nft::{Connection, Element, Table, Watch};

/// Maximum time that ADD waits for the DEL of another attachment. In measurements, the kubelet
/// deleted a pod 0.1 to 2.4 s after it had started the pod's successor.
pub(crate) const FOR_DEL: Duration = Duration::from_secs(3);

/// The waits of one ADD for ports that other attachments hold. All waits share one deadline.
pub(crate) struct Wait {
    watch: Option<Watch>,
    end: Instant,
}

impl Wait {
    /// Sets the deadline to `patience` from now.
    pub fn new(patience: Duration) -> Self {
        Self {
            watch: None,
            end: Instant::now() + patience,
        }
    }

    /// Waits until the element `held` is deleted or has another owner, and returns `true`. Returns
    /// `false` if the owner still has the element at the deadline. Returns `false` at once if the
    /// deadline has passed, or for an element without an owner, because no DEL will delete it.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn until_released(
        &mut self,
        connection: &Connection,
        table: &Table,
        held: &Element,
    ) -> Result<bool, nft::Error> {
        if held.owner.is_empty() || self.left().is_zero() {
            return Ok(false);
        }
        cni::step("wait for the holder's DEL");
        loop {
            let left = self.left();
            // The subscription starts before the element is read, so no deletion is missed.
            let watch = match &mut self.watch {
                Some(watch) => watch,
                none => none.insert(Watch::open()?),
            };
            if connection.still_held(table, [held])?.is_empty() {
                return Ok(true);
            }
            if !watch.wait_for_deletion(slice::from_ref(table), |_| true, left)? {
                return Ok(false);
            }
        }
    }

    /// Returns whether [`Self::until_released`] has waited. The attachment that holds the port may
    /// have ended during the wait, so the caller then checks this again.
    pub fn was_needed(&self) -> bool {
        self.watch.is_some()
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}
