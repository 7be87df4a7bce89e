//! Waits for a holder's DEL with the kernel's notifications.
//!
//! The plugin holds no lock meanwhile, because the awaited DEL, a GC or a RELOAD would need it.

use std::time::{Duration, Instant};

use nft::{Connection, Element, Table, Watch};

/// How long ADD waits. A kubelet needs 0.1 to 2.4 s (measured) to delete a pod whose successor it
/// starts.
pub(crate) const FOR_DEL: Duration = Duration::from_secs(3);

/// One deadline for all holders that an ADD waits for.
pub(crate) struct Wait {
    watch: Option<Watch>,
    end: Instant,
}

impl Wait {
    /// Starts the deadline.
    pub fn new(patience: Duration) -> Self {
        Self {
            watch: None,
            end: Instant::now() + patience,
        }
    }

    /// Waits until the owner of `held` has released it; returns `false` if it still has it at the
    /// deadline. Elements that no plugin added are not waited for.
    ///
    /// # Errors
    /// Refusals of the kernel.
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
            // Subscribes before it reads, so it misses no deletion.
            let watch = match &mut self.watch {
                Some(watch) => watch,
                none => none.insert(Watch::open()?),
            };
            let there = connection.holder(table, held)?;
            if there.is_none_or(|it| it.owner != held.owner) {
                return Ok(true);
            }
            if !watch.wait_for_deletion(table, left)? {
                return Ok(false);
            }
        }
    }

    /// Returns whether it waited, so a holder may have ended meanwhile.
    pub fn was_needed(&self) -> bool {
        self.watch.is_some()
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}
