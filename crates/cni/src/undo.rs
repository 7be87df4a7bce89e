//! ADD undoes what it did, newest first.

use crate::log;
use crate::stderr::note;

/// The way back from every step of an ADD so far; taken when this is dropped before
/// [`Undo::keep`].
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<(&'static str, Step<'a>)>,
}

type Step<'a> = Box<dyn FnOnce() -> anyhow::Result<()> + 'a>;

impl<'a> Undo<'a> {
    /// Remembers how to undo a step, named as what is then done: `delete the host link`.
    ///
    /// Pushed before the step is taken, `undo` finds nothing where the step failed, which
    /// it must count as success.
    pub fn push(&mut self, name: &'static str, undo: impl FnOnce() -> anyhow::Result<()> + 'a) {
        self.steps.push((name, Box::new(undo)));
    }

    /// Everything went well: nothing is undone.
    pub fn keep(mut self) {
        self.steps.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        for (name, step) in self.steps.drain(..).rev() {
            log::undo(name);
            if let Err(error) = step() {
                note(format_args!("undo: {name}: {error:#}"));
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
