//! ptp: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// With masquerading. The test `bridge_faults` has host-local as a victim.
const PTP: Subject = Subject {
    name: "ptp",
    chain: &["ptp"],
    victims: &["ptp"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(PTP, (Moment::Add, Attack::Failure), (320, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(PTP, (Moment::Add, Attack::Refusal), (35, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(PTP, (Moment::Add, Attack::Kill), (340, 7));
}

#[test]
fn a_first_add_that_fails_spoils_nothing_for_the_next_one() {
    torture(PTP, (Moment::FirstAdd, Attack::Failure), (340, 3));
}

#[test]
fn a_first_add_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(PTP, (Moment::FirstAdd, Attack::Kill), (120, 7));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(PTP, (Moment::Removal, Attack::Failure), (550, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    torture(PTP, (Moment::Removal, Attack::Refusal), (40, 6));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(PTP, (Moment::Removal, Attack::Kill), (210, 6));
}
