//! `dhcp daemon`: leases addresses for the clients, and keeps the leases.
//!
//! Each attachment has a task ([`task`]), which owns the attachment's record. All tasks share one
//! thread; work inside a sandbox runs on others.

use std::process::ExitCode;

use cni::note;

mod exchange;
mod flags;
mod held_leases;
mod interface;
mod sandbox;
pub(crate) mod server;
mod socket;
pub(crate) mod takeover;
mod task;

use flags::Flags;

/// Runs the daemon until SIGTERM or SIGINT.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let flags = match Flags::parse(arguments) {
        Ok(flags) => flags,
        Err(error) => {
            note!("{error:#}\n{}", flags::USAGE);
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = runtime.map_err(anyhow::Error::from);
    match served.and_then(|runtime| runtime.block_on(server::serve(flags))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
