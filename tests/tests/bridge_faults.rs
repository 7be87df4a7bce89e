//! bridge: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed, in bridge and in host-local. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// With masquerading and MAC checks.
const BRIDGE: Subject = Subject {
    name: "bridge",
    chain: &["bridge"],
    victims: &["bridge", "host-local"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(BRIDGE, (Moment::Add, Attack::Failure), (455, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(BRIDGE, (Moment::Add, Attack::Refusal), (35, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(BRIDGE, (Moment::Add, Attack::Kill), (550, 7));
}

#[test]
fn a_first_add_that_fails_spoils_nothing_for_the_next_one() {
    torture(BRIDGE, (Moment::FirstAdd, Attack::Failure), (520, 3));
}

#[test]
fn a_first_add_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(BRIDGE, (Moment::FirstAdd, Attack::Kill), (195, 7));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(BRIDGE, (Moment::Removal, Attack::Failure), (715, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    torture(BRIDGE, (Moment::Removal, Attack::Refusal), (40, 6));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(BRIDGE, (Moment::Removal, Attack::Kill), (290, 6));
}
