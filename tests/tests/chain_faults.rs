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

/// podman's default network.
const PODMAN: Subject = Subject {
    name: "podman",
    chain: &["bridge", "portmap", "firewall", "tuning"],
    victims: &["bridge", "host-local", "portmap", "firewall", "tuning"],
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
    torture(CHAIN, (Moment::Removal, Attack::Refusal), (100, 5));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(CHAIN, (Moment::Removal, Attack::Kill), (415, 6));
}

#[test]
fn an_add_of_podmans_chain_whose_calls_fail_leaves_nothing() {
    torture(PODMAN, (Moment::Add, Attack::Failure), (500, 1));
}

#[test]
fn an_add_of_podmans_chain_whose_messages_are_refused_leaves_nothing() {
    torture(PODMAN, (Moment::Add, Attack::Refusal), (90, 7));
}

#[test]
fn an_add_of_podmans_chain_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(PODMAN, (Moment::Add, Attack::Kill), (600, 7));
}

#[test]
fn a_first_add_of_podmans_chain_that_fails_spoils_nothing_for_the_next_one() {
    torture(PODMAN, (Moment::FirstAdd, Attack::Failure), (500, 3));
}

#[test]
fn a_first_add_of_podmans_chain_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(PODMAN, (Moment::FirstAdd, Attack::Kill), (200, 7));
}

#[test]
fn an_add_of_podmans_chain_whose_calls_fail_can_be_repeated() {
    torture(PODMAN, (Moment::AddAgain, Attack::Failure), (500, 1));
}

#[test]
fn an_add_of_podmans_chain_whose_messages_are_refused_can_be_repeated() {
    torture(PODMAN, (Moment::AddAgain, Attack::Refusal), (90, 7));
}

#[test]
fn the_next_removal_completes_one_of_podmans_chain_whose_calls_failed() {
    torture(PODMAN, (Moment::Removal, Attack::Failure), (500, 1));
}

#[test]
fn the_next_removal_completes_one_of_podmans_chain_whose_messages_were_refused() {
    torture(PODMAN, (Moment::Removal, Attack::Refusal), (50, 6));
}

#[test]
fn the_next_removal_completes_a_killed_one_of_podmans_chain() {
    torture(PODMAN, (Moment::Removal, Attack::Kill), (200, 6));
}
