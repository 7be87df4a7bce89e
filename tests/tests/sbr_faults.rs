//! sbr: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and wherever
//! it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

const SBR: Subject = Subject {
    name: "sbr",
    chain: &["bridge", "sbr"],
    victims: &["sbr"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(SBR, (Moment::Add, Attack::Failure), (80, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(SBR, (Moment::Add, Attack::Refusal), (15, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(SBR, (Moment::Add, Attack::Kill), (100, 7));
}

#[test]
fn an_add_works_after_one_whose_calls_failed() {
    torture(SBR, (Moment::AddAgain, Attack::Failure), (80, 3));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(SBR, (Moment::Removal, Attack::Failure), (60, 0));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(SBR, (Moment::Removal, Attack::Kill), (45, 6));
}
