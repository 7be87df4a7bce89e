//! vrf: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and wherever
//! it is killed. `tests::lab` describes the conditions. Needs a kernel with VRFs.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

const VRF: Subject = Subject {
    name: "vrf",
    chain: &["bridge", "vrf"],
    victims: &["vrf"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(VRF, (Moment::Add, Attack::Failure), (80, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(VRF, (Moment::Add, Attack::Refusal), (15, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(VRF, (Moment::Add, Attack::Kill), (100, 7));
}

#[test]
fn an_add_works_after_one_whose_calls_failed() {
    torture(VRF, (Moment::AddAgain, Attack::Failure), (80, 3));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(VRF, (Moment::Removal, Attack::Failure), (60, 0));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(VRF, (Moment::Removal, Attack::Kill), (45, 6));
}
