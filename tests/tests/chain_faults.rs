//! All plugins of a pod, one after another: whichever system call of one of them fails, and wherever it
//! is killed, the whole chain's DEL or GC leaves nothing of the pod. What has to be true is told in
//! `tests::lab`.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// As a node runs them.
const CHAIN: Subject = Subject {
    name: "chain",
    chain: &["bridge", "portmap", "bandwidth"],
    victims: &["bridge", "host-local", "portmap", "bandwidth"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(CHAIN, (Moment::Add, Attack::Failure), (715, 1));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(CHAIN, (Moment::Add, Attack::Refusal), (90, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(CHAIN, (Moment::Add, Attack::Kill), (845, 7));
}

#[test]
fn a_first_add_that_fails_spoils_nothing_for_the_next_one() {
    torture(CHAIN, (Moment::FirstAdd, Attack::Failure), (780, 3));
}

#[test]
fn a_first_add_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(CHAIN, (Moment::FirstAdd, Attack::Kill), (310, 7));
}

#[test]
fn a_removal_whose_calls_fail_is_made_up_for_by_the_next_one() {
    torture(CHAIN, (Moment::Removal, Attack::Failure), (1040, 1));
}

#[test]
fn a_removal_whose_messages_are_refused_is_made_up_for_by_the_next_one() {
    torture(CHAIN, (Moment::Removal, Attack::Refusal), (100, 7));
}

#[test]
fn a_removal_that_is_killed_is_made_up_for_by_the_next_one() {
    torture(CHAIN, (Moment::Removal, Attack::Kill), (415, 6));
}
