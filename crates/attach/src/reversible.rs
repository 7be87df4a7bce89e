//! Changes in a sandbox that ADD can revert.

use netlink::{Connection, Error, Request};

/// A change, and the request that reverts it.
#[derive(Debug)]
pub struct Reversible {
    make: Request,
    revert: Request,
    /// Returns whether the kernel refused the change because there is nothing to change.
    is_made: fn(&Error) -> bool,
}

/// The requests that revert changes, oldest first.
#[derive(Debug, Default)]
pub struct Reverts(Vec<Request>);

impl Reversible {
    /// Returns a change that adds something. If it exists, neither the change nor the rollback
    /// touches it.
    pub fn addition(make: Request, revert: Request) -> Self {
        let is_made = Error::is_already_exists;
        Self {
            make,
            revert,
            is_made,
        }
    }

    /// Returns a change that deletes something, unless it is missing.
    pub fn removal(make: Request, revert: Request) -> Self {
        let is_made = Error::is_not_found;
        Self {
            make,
            revert,
            is_made,
        }
    }
}

impl Reverts {
    /// Makes `changes` in their order. After a failure, the kernel still makes the later ones, and
    /// the caller has to run [`Self::run`].
    ///
    /// # Errors
    /// The first failure.
    pub fn make(&mut self, connection: &Connection, changes: Vec<Reversible>) -> Result<(), Error> {
        let makes: Vec<_> = changes.iter().map(|it| it.make.clone()).collect();
        let outcomes = match connection.attempt(&makes) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                // Without the kernel's answers, each change may have been made.
                self.0.extend(changes.into_iter().map(|it| it.revert));
                return Err(error);
            }
        };
        let mut failures = Vec::new();
        for (outcome, change) in outcomes.into_iter().zip(changes) {
            match outcome {
                Ok(()) => self.0.push(change.revert),
                Err(error) if (change.is_made)(&error) => {}
                Err(error) => failures.push(error),
            }
        }
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// Reverts the changes, newest first. Skips those that something else has reverted.
    ///
    /// # Errors
    /// All failures together.
    pub fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        let newest_first: Vec<_> = self.0.iter().rev().cloned().collect();
        let outcomes = connection.attempt(&newest_first)?.into_iter();
        cni::all(outcomes.map(|outcome| match outcome {
            Err(error) if error.is_already_exists() || error.is_not_found() => Ok(()),
            outcome => Ok(outcome?),
        }))
    }
}
