//! tap: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

const TAP: Subject = Subject {
    name: "tap",
    chain: &["tap"],
    victims: &["tap"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(TAP, (Moment::Add, Attack::Failure), (100, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(TAP, (Moment::Add, Attack::Refusal), (10, 5));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(TAP, (Moment::Add, Attack::Kill), (100, 7));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(TAP, (Moment::Removal, Attack::Failure), (100, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    torture(TAP, (Moment::Removal, Attack::Refusal), (5, 3));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(TAP, (Moment::Removal, Attack::Kill), (50, 6));
}
