//! The verbs. A sandbox without limits passes through; one that asks for any is refused,
//! since nothing here can limit a rate yet.

use cni::{
    About, AddRequest, AddResult, CheckRequest, DelRequest, Error, GcRequest, Network, SpecVersion,
    StatusRequest,
};

use crate::config;

/// The plugin.
pub(crate) struct Bandwidth;

impl cni::Plugin for Bandwidth {
    fn about(&self) -> About {
        About {
            name: "bandwidth",
            version: env!("CARGO_PKG_VERSION"),
            spec_versions: SpecVersion::CHAINED,
        }
    }

    fn add(&self, request: &AddRequest) -> anyhow::Result<AddResult> {
        let result = request.chained()?;
        expect_no_limit(&request.network)?;
        Ok(result.clone())
    }

    /// ADD left nothing.
    fn del(&self, _request: &DelRequest) -> anyhow::Result<()> {
        Ok(())
    }

    fn check(&self, request: &CheckRequest) -> anyhow::Result<()> {
        request.chained()?;
        Ok(expect_no_limit(&request.network)?)
    }

    /// Sandboxes without limits can be attached; a limit in the configuration itself is
    /// one for all of them.
    fn status(&self, request: &StatusRequest) -> anyhow::Result<()> {
        Ok(expect_no_limit(&request.network)?)
    }

    /// ADD left nothing.
    fn gc(&self, _request: &GcRequest) -> anyhow::Result<()> {
        Ok(())
    }
}

fn expect_no_limit(network: &Network) -> Result<(), Error> {
    match config::limit(network)? {
        None => Ok(()),
        Some((key, value)) => Err(Error::UnsupportedField {
            key,
            value,
            reason: "this version of the plugin cannot limit rates yet".into(),
        }),
    }
}
