//! Runs a network configuration list against a sandbox, as a runtime does, and says what is wrong
//! with a node.

mod cache;
mod chain;
mod cli;
mod conflist;
mod doctor;
mod gc;
mod install;
mod listing;
mod migrate;
mod node;
mod parts;
mod ps;
mod reload;
mod sandbox;
mod settings;

pub use cli::{command, run};
