//! All plugins of an attachment in sequence: DEL or GC of the whole chain leaves nothing, whichever
//! system call of a plugin fails and wherever it is killed. `tests::lab` describes the conditions.

use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;

/// The plugins of a typical node.
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
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(CHAIN, (Moment::Removal, Attack::Failure), (1040, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    torture(CHAIN, (Moment::Removal, Attack::Refusal), (100, 7));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(CHAIN, (Moment::Removal, Attack::Kill), (415, 6));
}
