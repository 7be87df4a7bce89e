//! The verbs, which call the crate [`attach`].

use attach::{ContainerLink, Gateway};
use cni::{AddRequest, Answer, Answered, CheckRequest, DelRequest, note};

use crate::config::{self, Config};

pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network, &request.args()?)?;
    note_idle_keys(&config);
    attach::add(request, answer, &config)
}

/// Logs keys that have no effect. They are no error, because the reference accepts them silently.
fn note_idle_keys(config: &Config) {
    if config.container_link == ContainerLink::Addressed {
        return;
    }
    if config.gateway != Gateway::None {
        note("isGateway and isDefaultGateway do nothing without ipam, which leases the addresses");
    }
    if config.masquerade.is_some() {
        note("ipMasq does nothing without ipam, which leases the addresses");
    }
}

/// Deletes the attachment. The reference sets no alias on its veth pairs, so DEL recognises such a
/// pair of this network in another way: its host's end is a port of the configured bridge.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    attach::del(request, |host, end| {
        let bridge = host.find_link(config::bridge_name(&request.network)?.as_str())?;
        Ok(bridge.is_some_and(|bridge| end.master == Some(bridge.index)))
    })
}

pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    attach::check(request, &config)
}

pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    if !config.guard().is_needed() {
        return Ok(());
    }
    attach::reload(request, &config)
}
