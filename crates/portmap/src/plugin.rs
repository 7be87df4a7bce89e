//! The verbs. A sandbox without mappings passes through; one that asks for any is refused,
//! since nothing here can forward a port yet.

use cni::{
    About, AddRequest, AddResult, CheckRequest, DelRequest, Error, GcRequest, Network, SpecVersion,
    StatusRequest,
};

use crate::config;

/// The plugin.
pub(crate) struct Portmap;

impl cni::Plugin for Portmap {
    fn about(&self) -> About {
        About {
            name: "portmap",
            version: env!("CARGO_PKG_VERSION"),
            spec_versions: SpecVersion::CHAINED,
        }
    }

    fn add(&self, request: &AddRequest) -> anyhow::Result<AddResult> {
        let result = request.chained()?;
        expect_no_mappings(&request.network)?;
        Ok(result.clone())
    }

    /// ADD left nothing.
    fn del(&self, _request: &DelRequest) -> anyhow::Result<()> {
        Ok(())
    }

    fn check(&self, request: &CheckRequest) -> anyhow::Result<()> {
        request.chained()?;
        Ok(expect_no_mappings(&request.network)?)
    }

    /// Sandboxes without mappings can be attached.
    fn status(&self, request: &StatusRequest) -> anyhow::Result<()> {
        Ok(expect_no_mappings(&request.network)?)
    }

    /// ADD left nothing.
    fn gc(&self, _request: &GcRequest) -> anyhow::Result<()> {
        Ok(())
    }
}

fn expect_no_mappings(network: &Network) -> Result<(), Error> {
    let Some(mapping) = config::mappings(network)?.first().copied() else {
        return Ok(());
    };
    let address = mapping
        .host_ip
        .map(|address| format!(" of {address}"))
        .unwrap_or_default();
    let (host, container) = (mapping.host_port, mapping.container_port);
    Err(Error::UnsupportedField {
        key: "runtimeConfig.portMappings".into(),
        value: format!("{:?} port {host}{address} to {container}", mapping.protocol),
        reason: "this version of the plugin cannot forward ports yet".into(),
    })
}
