//! Deletes the link `eth0` of the namespace `CNI_NETNS` as a plugin does, from outside.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use netlink::Connection;
use netns::Netns;

fn main() -> ExitCode {
    netlink::run(|| remove().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

fn remove() -> Result<(), Box<dyn Error>> {
    let namespace = env::var_os("CNI_NETNS").ok_or("CNI_NETNS is not set")?;
    let sandbox = Connection::open_in(&Netns::open(namespace.as_ref())?)?;
    Ok(sandbox.remove_link(&sandbox.link("eth0")?)?)
}
