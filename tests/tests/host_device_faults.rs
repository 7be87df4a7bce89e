//! host-device: the device is back as it was, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

const DEVICE: Subject = Subject {
    name: "host-device",
    chain: &["host-device"],
    victims: &["host-device"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(DEVICE, (Moment::Add, Attack::Failure), (40, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(DEVICE, (Moment::Add, Attack::Refusal), (8, 5));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(DEVICE, (Moment::Add, Attack::Kill), (60, 6));
}

#[test]
fn an_add_that_failed_can_be_repeated() {
    torture(DEVICE, (Moment::AddAgain, Attack::Failure), (40, 3));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(DEVICE, (Moment::Removal, Attack::Failure), (40, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    torture(DEVICE, (Moment::Removal, Attack::Refusal), (8, 1));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(DEVICE, (Moment::Removal, Attack::Kill), (40, 6));
}
