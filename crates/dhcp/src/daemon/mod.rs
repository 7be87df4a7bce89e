//! `dhcp daemon`: leases addresses for the clients, and keeps the leases.
//!
//! Each attachment has a task ([`task`]), which owns the attachment's record. All tasks share one
//! thread; work inside a sandbox runs on others.

use std::io;
use std::process::ExitCode;

use cni::note;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

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
    match Flags::parse(arguments).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(flags: Flags) -> anyhow::Result<()> {
    raise_file_limit()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(server::serve(flags))
}

/// Raises the soft limit of open files, 1,024 in most places, to the hard one. Each attachment that
/// waits for a server needs two to five.
fn raise_file_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}
