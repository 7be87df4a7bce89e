//! bandwidth: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// Limits in both directions.
const BANDWIDTH: Subject = Subject {
    name: "bandwidth",
    chain: &["bridge", "bandwidth"],
    victims: &["bandwidth"],
};

/// Limits of devices, with a record.
const DEVICES: Subject = Subject {
    name: "podResources",
    chain: &["bridge", "devices"],
    victims: &["devices"],
};

#[test]
fn an_add_for_devices_whose_calls_fail_leaves_nothing() {
    torture(DEVICES, (Moment::Add, Attack::Failure), (80, 3));
}

#[test]
fn an_add_for_devices_whose_calls_fail_can_be_repeated() {
    torture(DEVICES, (Moment::AddAgain, Attack::Failure), (80, 3));
}

#[test]
fn an_add_for_devices_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(DEVICES, (Moment::Add, Attack::Kill), (90, 7));
}

#[test]
fn the_next_removal_completes_one_for_devices_whose_calls_failed() {
    torture(DEVICES, (Moment::Removal, Attack::Failure), (60, 1));
}

#[test]
fn the_next_removal_completes_a_killed_one_for_devices() {
    torture(DEVICES, (Moment::Removal, Attack::Kill), (30, 6));
}

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(BANDWIDTH, (Moment::Add, Attack::Failure), (70, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(BANDWIDTH, (Moment::Add, Attack::Refusal), (16, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(BANDWIDTH, (Moment::Add, Attack::Kill), (75, 7));
}

#[test]
fn a_first_add_that_fails_spoils_nothing_for_the_next_one() {
    torture(BANDWIDTH, (Moment::FirstAdd, Attack::Failure), (70, 3));
}

#[test]
fn a_first_add_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(BANDWIDTH, (Moment::FirstAdd, Attack::Kill), (25, 7));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(BANDWIDTH, (Moment::Removal, Attack::Failure), (50, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    // A third of the messages asks for the generation of the rules and is repeated after a refusal.
    torture(BANDWIDTH, (Moment::Removal, Attack::Refusal), (5, 6));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(BANDWIDTH, (Moment::Removal, Attack::Kill), (25, 6));
}
