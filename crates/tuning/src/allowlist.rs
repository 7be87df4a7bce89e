//! The operator's list of allowed sysctls.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use cni::{Error, files};
use regex_lite::Regex;

use crate::Config;
use crate::config::Asked;

/// Checks that the name of each sysctl, as written in the configuration, matches a line of the
/// operator's allowlist. If nothing is at its path, not even a link without a target, every name is
/// allowed. If no sysctl is configured, this function does not read the file.
///
/// # Errors
/// - Code 7: a name is not allowed; the error names it.
/// - Code 2: a line is not a supported regular expression.
pub(crate) fn expect_allowed(config: &Config) -> anyhow::Result<()> {
    if config.sysctls.is_empty() {
        return Ok(());
    }
    let path = Path::new(FILE);
    let list = match files::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && files::is_absent(path) => {
            return Ok(());
        }
        list => list.with_context(|| format!("read {FILE}"))?,
    };
    let list = String::from_utf8(list).with_context(|| format!("read {FILE}"))?;
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty());
    let allowed = lines.map(pattern).collect::<Result<Vec<_>, _>>()?;
    for Asked { written: name, .. } in config.sysctls.values() {
        if !allowed.iter().any(|pattern| pattern.is_match(name)) {
            let reason = format!("no line of {FILE} allows it");
            return Err(Error::invalid(format!("sysctl.{name}"), reason).into());
        }
    }
    Ok(())
}

fn pattern(line: &str) -> Result<Regex, Error> {
    Regex::new(line).map_err(|error| Error::UnsupportedField {
        key: FILE.to_owned(),
        value: format!("{line:?}"),
        reason: error.to_string(),
    })
}

/// Path of the operator's list of allowed sysctls, the same as in the Go plugin. Each line is a
/// regular expression.
const FILE: &str = "/etc/cni/tuning/allowlist.conf";
