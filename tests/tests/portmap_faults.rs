//! portmap: whichever system call of an ADD, DEL or GC fails, and wherever it is killed, nothing of
//! the pod is left in the end.
//!
//! An ADD that fails leaves nothing by itself; one that is killed, nothing after DEL or GC; one that
//! succeeds all the same passes CHECK. The tables without elements, the bridge and its sysctls stay,
//! as they do after the first pod. What strace cannot single out is told in `tests::faults`.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// Two ports, of both families, with everything that keeps neighbours and 127.0.0.1 apart.
const PORTMAP: Subject = Subject {
    name: "portmap",
    chain: &["bridge", "portmap"],
    victims: &["portmap"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(PORTMAP, (Moment::Add, Attack::Failure), (155, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(PORTMAP, (Moment::Add, Attack::Refusal), (35, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(PORTMAP, (Moment::Add, Attack::Kill), (180, 7));
}

#[test]
fn a_first_add_that_fails_spoils_nothing_for_the_next_one() {
    torture(PORTMAP, (Moment::FirstAdd, Attack::Failure), (155, 3));
}

#[test]
fn a_first_add_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(PORTMAP, (Moment::FirstAdd, Attack::Kill), (55, 7));
}

#[test]
fn a_removal_whose_calls_fail_is_made_up_for_by_the_next_one() {
    torture(PORTMAP, (Moment::Removal, Attack::Failure), (230, 1));
}

#[test]
fn a_removal_whose_messages_are_refused_is_made_up_for_by_the_next_one() {
    torture(PORTMAP, (Moment::Removal, Attack::Refusal), (50, 7));
}

#[test]
fn a_removal_that_is_killed_is_made_up_for_by_the_next_one() {
    torture(PORTMAP, (Moment::Removal, Attack::Kill), (90, 6));
}
