//! firewall: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// Permission, and an isolated bridge.
const FIREWALL: Subject = Subject {
    name: "firewall",
    chain: &["bridge", "firewall"],
    victims: &["firewall"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(FIREWALL, (Moment::Add, Attack::Failure), (40, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(FIREWALL, (Moment::Add, Attack::Refusal), (16, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(FIREWALL, (Moment::Add, Attack::Kill), (40, 7));
}

#[test]
fn a_first_add_that_fails_spoils_nothing_for_the_next_one() {
    torture(FIREWALL, (Moment::FirstAdd, Attack::Failure), (40, 3));
}

#[test]
fn a_first_add_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(FIREWALL, (Moment::FirstAdd, Attack::Kill), (25, 7));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(FIREWALL, (Moment::Removal, Attack::Failure), (30, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    torture(FIREWALL, (Moment::Removal, Attack::Refusal), (5, 6));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(FIREWALL, (Moment::Removal, Attack::Kill), (25, 6));
}
