//! The differences that CHECK reports.

use anyhow::{anyhow, ensure};
use cni::Attachment;
use cni::result::Interface;
use netlink::Link;

/// The differences that CHECK found, as messages.
#[derive(Debug, Default)]
pub struct Differences(Vec<String>);

impl Differences {
    /// Appends a difference.
    pub fn add(&mut self, difference: String) {
        self.0.push(difference);
    }

    /// Adds all of `differences`.
    pub fn extend(&mut self, differences: impl IntoIterator<Item = String>) {
        self.0.extend(differences);
    }

    /// Adds `difference` if the condition `holds` is false.
    pub fn unless(&mut self, holds: bool, difference: impl FnOnce() -> String) {
        if !holds {
            self.add(difference());
        }
    }

    /// Returns an error if there are differences.
    ///
    /// # Errors
    /// One error that names `attachment` and lists all differences.
    pub fn report(&self, attachment: &Attachment) -> anyhow::Result<()> {
        let all = self.join();
        ensure!(all.is_empty(), "{attachment} is not as ADD left it: {all}");
        Ok(())
    }

    /// Returns an error as [`Self::report`] does, for differences that `cnitool reload` can remove.
    ///
    /// # Errors
    /// As [`Self::report`]. The error also names this command.
    pub fn report_restorable(&self, attachment: &Attachment) -> anyhow::Result<()> {
        let advise = |error| anyhow!("{error}; `cnitool reload` puts back what is missing");
        self.report(attachment).map_err(advise)
    }

    pub(crate) fn join(&self) -> String {
        self.0.join("; ")
    }

    /// Adds a difference if the MAC of `link` is not the one of `reported`, its interface in
    /// `prevResult`.
    pub fn compare_mac(&mut self, link: &Link, reported: Option<&Interface>) {
        let Some(reported) = reported else {
            self.add(format!("prevResult does not mention {}", link.name));
            return;
        };
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        let reported = reported.mac.as_deref().unwrap_or(&mac);
        self.unless(reported.eq_ignore_ascii_case(&mac), || {
            format!("{} has MAC {mac}, not {reported}", link.name)
        });
    }
}
