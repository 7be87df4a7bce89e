//! tuning: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// All settings of the interface but its MAC, and two sysctls.
const TUNING: Subject = Subject {
    name: "tuning",
    chain: &["bridge", "tuning"],
    victims: &["tuning"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(TUNING, (Moment::Add, Attack::Failure), (110, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(TUNING, (Moment::Add, Attack::Refusal), (8, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(TUNING, (Moment::Add, Attack::Kill), (130, 7));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(TUNING, (Moment::Removal, Attack::Failure), (100, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    // DEL only reports what it cannot restore.
    torture(TUNING, (Moment::Removal, Attack::Refusal), (7, 0));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(TUNING, (Moment::Removal, Attack::Kill), (45, 6));
}
