//! The verbs, which call the crate [`attach`].

use cni::{AddRequest, Answer, Answered, CheckRequest, DelRequest, StatusRequest, Verb};

use crate::config::Config;

pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network, &request.args()?)?;
    attach::add(request, answer, &config)
}

/// Deletes the attachment. The reference sets no alias on its veth pairs, so DEL recognises such a
/// pair in another way: its host's end is not a port of a bridge.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    attach::del(request, |_, end| Ok(end.master.is_none()))
}

pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    attach::check(request, &config)
}

/// Checks the configuration and the kernel, then calls STATUS of the IPAM plugin.
///
/// # Errors
/// The configuration is invalid. Code 50: the kernel lacks a part of `nf_tables` that the
/// configuration needs.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::of_network(&request.network)?.guard().probe()?;
    cni::step("ask the IPAM plugin");
    attach::forward(&request.network, Verb::Status)
}

pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    if !config.guard().is_needed() {
        return Ok(());
    }
    attach::reload(request, &config)
}
