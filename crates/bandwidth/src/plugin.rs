//! The verbs, and the executable's name.

use cni::{
    About, AddRequest, Answer, Answered, CheckRequest, DelRequest, GcRequest, Reload, SpecVersion,
    StatusRequest,
};

use crate::{add, check, del, gc, status};

/// The plugin.
pub(crate) struct Bandwidth;

impl cni::Plugin for Bandwidth {
    fn about(&self) -> About {
        About {
            name: "bandwidth",
            version: env!("CARGO_PKG_VERSION"),
            spec_versions: SpecVersion::WITH_INTERFACES,
        }
    }

    fn add(&self, request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
        add::add(request, answer)
    }

    fn del(&self, request: &DelRequest) -> anyhow::Result<()> {
        del::del(request)
    }

    fn check(&self, request: &CheckRequest) -> anyhow::Result<()> {
        check::check(request)
    }

    fn status(&self, request: &StatusRequest) -> anyhow::Result<()> {
        status::status(request)
    }

    fn gc(&self, request: &GcRequest) -> anyhow::Result<()> {
        gc::gc(request)
    }

    fn reload(&self) -> Option<Reload> {
        None
    }
}
