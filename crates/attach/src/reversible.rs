//! Changes in a sandbox that ADD can revert.

use cni::Undo;
use netlink::{Connection, Error, Request};

/// A change, and the request that reverts it.
#[derive(Debug)]
pub struct Reversible {
    make: Request,
    revert: Request,
    /// Returns whether the kernel refused the change because there is nothing to change.
    is_made: fn(&Error) -> bool,
}

impl Reversible {
    /// Returns a change that adds something. If it exists, the kernel refuses the change, and the
    /// rollback leaves it, unless the kernel's answer was lost.
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

/// Makes `changes` in their order. After a failure, the kernel still makes the later ones. The
/// step `name` of the rollback reverts those that were made, newest first, unless something else has
/// reverted them.
///
/// # Errors
/// The first failure.
pub fn make<'a>(
    connection: &'a Connection,
    changes: Vec<Reversible>,
    (undo, name): (&mut Undo<'a>, &'static str),
) -> Result<(), Error> {
    let makes: Vec<_> = changes.iter().map(|it| it.make.clone()).collect();
    let (mut reverts, mut failures) = (Vec::new(), Vec::new());
    match connection.attempt(&makes) {
        Ok(outcomes) => {
            for (outcome, change) in outcomes.into_iter().zip(changes) {
                match outcome {
                    Ok(()) => reverts.push(change.revert),
                    Err(error) if (change.is_made)(&error) => {}
                    Err(error) => failures.push(error),
                }
            }
        }
        Err(error) => {
            // Without the kernel's answers, each change may have been made.
            reverts.extend(changes.into_iter().map(|it| it.revert));
            failures.push(error);
        }
    }
    reverts.reverse();
    undo.push(name, move || {
        let outcomes = connection.attempt(&reverts)?.into_iter();
        cni::all(outcomes.map(|outcome| match outcome {
            Err(error) if error.is_already_exists() || error.is_not_found() => Ok(()),
            outcome => Ok(outcome?),
        }))
    });
    failures.into_iter().next().map_or(Ok(()), Err)
}
