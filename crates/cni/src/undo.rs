//! Rollback of an ADD, newest step first.

use crate::{log, note};

/// The rollback steps of an ADD. Dropping this value runs them, unless [`Undo::keep`] was called.
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<(&'static str, Step<'a>)>,
}

type Step<'a> = Box<dyn FnOnce() -> anyhow::Result<()> + 'a>;

impl<'a> Undo<'a> {
    /// Adds the rollback step `undo`. `name` is its action, such as `delete the host link`.
    ///
    /// The caller may add `undo` before it makes the change that `undo` reverts. Then `undo` must
    /// also succeed if the change was not made.
    pub fn push(&mut self, name: &'static str, undo: impl FnOnce() -> anyhow::Result<()> + 'a) {
        self.steps.push((name, Box::new(undo)));
    }

    /// Discards the rollback steps, after ADD succeeded.
    pub fn keep(mut self) {
        self.steps.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        for (name, step) in self.steps.drain(..).rev() {
            log::undo(name);
            if let Err(error) = step() {
                note!("undo: {name}: {error:#}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn steps_are_undone_newest_first_even_if_one_fails() {
        let log = RefCell::new(Vec::new());
        let mut undo = Undo::default();
        for step in [1, 2, 3] {
            let log = &log;
            undo.push("step", move || {
                log.borrow_mut().push(step);
                anyhow::ensure!(step != 2, "cannot");
                Ok(())
            });
        }
        drop(undo);
        assert_eq!(*log.borrow(), [3, 2, 1]);
    }

    #[test]
    fn nothing_is_undone_after_success() {
        let log = RefCell::new(0);
        let mut undo = Undo::default();
        undo.push("step", || {
            *log.borrow_mut() += 1;
            Ok(())
        });
        undo.keep();
        assert_eq!(*log.borrow(), 0);
    }
}
