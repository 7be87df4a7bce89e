//! Waiting for a holder's DEL, by the kernel's notifications.
//!
//! No lock is held meanwhile: the DEL that is waited for, a GC or a RELOAD would need it.

use std::time::{Duration, Instant};

use nft::{Connection, Element, Table, Watch};

/// How long a kubelet takes to delete a pod whose successor it starts: 0.1 to 2.4 s were seen.
pub(crate) const FOR_DEL: Duration = Duration::from_secs(3);

/// One deadline for all holders that are waited for.
pub(crate) struct Wait {
    watch: Option<Watch>,
    end: Instant,
}

impl Wait {
    /// Waits so long at the most, from now on.
    pub fn new(patience: Duration) -> Self {
        Self {
            watch: None,
            end: Instant::now() + patience,
        }
    }

    /// Waits until `held` is no longer its holder's; `false` if it still is in the end. What no plugin made is
    /// not waited for.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
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
            // It hears before it looks, so that nothing happens in between.
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

    /// Time has passed, in which a holder may have ended.
    pub fn was_needed(&self) -> bool {
        self.watch.is_some()
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}
