//! Runs a network configuration list against a sandbox, as a runtime does, and diagnoses a node.

mod add;
mod cli;
mod doctor;
mod drop_ins;
mod gc;
mod install;
mod limit;
mod listing;
mod migrate;
mod ps;
mod reference;
mod sandbox;
mod scrape;
mod settings;

pub use cli::{command, run};
