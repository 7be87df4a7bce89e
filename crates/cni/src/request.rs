//! The requests of the verbs.

use std::collections::HashSet;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::args::CniArgs;
use crate::attachment::{Attachment, InvalidName, NetworkName};
use crate::environment::Environment;
use crate::error::Error;
use crate::json;
use crate::network::Network;
use crate::result::{self, AddResult};
use crate::stderr::{GOING_ON, note, or_note};

/// Request to attach a sandbox.
#[derive(Debug, Clone)]
pub struct AddRequest {
    /// The attachment.
    pub attachment: Attachment,
    /// The path in `CNI_NETNS`. The file may be missing. The path is never the plugin's own
    /// namespace, unless `CNI_NETNS_OVERRIDE` allows that.
    pub netns: PathBuf,
    /// The text of `CNI_ARGS`; [`Self::args`] parses it.
    pub args: String,
    /// The configuration.
    pub network: Network,
    /// Result of the previous plugins; `None` for the first plugin of a chain.
    pub prev_result: Option<AddResult>,
}

/// Request to compare a sandbox with `prev_result`, the result of ADD.
pub type CheckRequest = AddRequest;

/// Request to detach a sandbox, which may no longer exist.
#[derive(Debug, Clone)]
pub struct DelRequest {
    /// The attachment.
    pub attachment: Attachment,
    /// The path in `CNI_NETNS`. `None` if the runtime passes no path, or if the path is the
    /// plugin's own namespace: another process may have reused the process ID in
    /// `/proc/<pid>/ns/net`, so the sandbox is gone.
    pub netns: Option<PathBuf>,
    /// The configuration.
    pub network: Network,
    /// The last result, if the runtime still has it and it is valid.
    pub prev_result: Option<AddResult>,
}

/// Request to remove resources of attachments that are not in `valid`.
#[derive(Debug, Clone)]
pub struct GcRequest {
    /// The configuration.
    pub network: Network,
    /// The attachments of the network that the runtime still uses; empty if there are none.
    pub valid: Vec<Attachment>,
}

/// Request to report whether an ADD can succeed.
#[derive(Debug, Clone)]
pub struct StatusRequest {
    /// The configuration.
    pub network: Network,
}

impl AddRequest {
    /// Returns the result of the previous plugins, for CHECK and for a plugin that cannot be the
    /// first of a chain.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] without a `prevResult`.
    pub fn chained(&self) -> Result<&AddResult, Error> {
        let reason = "missing; the plugin needs the result of those before it in the chain";
        self.prev_result
            .as_ref()
            .ok_or_else(|| Error::invalid("prevResult", reason))
    }

    /// Parses `CNI_ARGS`. Only plugins that have arguments call this function. All others ignore
    /// the variable, even if it is malformed, as the Go plugins do.
    ///
    /// # Errors
    /// [`Error::Environment`] if a pair does not contain exactly one `=`.
    pub fn args(&self) -> Result<CniArgs, Error> {
        CniArgs::parse(&self.args)
    }

    pub(crate) fn parse(environment: Environment, network: Network) -> Result<Self, Error> {
        let prev_result = prev_result(&network)?;
        if environment.is_in_own_namespace() {
            let path = environment.netns.unwrap_or_default();
            return Err(Error::OwnNamespace(path));
        }
        Ok(Self {
            attachment: attachment(&environment, &network)?,
            netns: environment.netns.unwrap_or_default(),
            args: environment.args,
            network,
            prev_result,
        })
    }
}

impl DelRequest {
    /// Parses a request. Ignores values that DEL does not need: an invalid `prevResult` causes a
    /// message and counts as absent, and `CNI_ARGS` is not read.
    ///
    /// # Errors
    /// [`Error::Environment`]: the container ID or the interface is missing.
    pub(crate) fn parse(environment: Environment, network: Network) -> Result<Self, Error> {
        let prev_result = or_note(prev_result(&network), GOING_ON).flatten();
        let is_gone = environment.is_in_own_namespace();
        if is_gone {
            note("CNI_NETNS is the plugin's own network namespace, so the sandbox is gone");
        }
        Ok(Self {
            attachment: attachment(&environment, &network)?,
            netns: environment.netns.filter(|_| !is_gone),
            network,
            prev_result,
        })
    }
}

impl GcRequest {
    pub(crate) fn parse(network: Network) -> Result<Self, Error> {
        // CRI-O still sends the older key in addition to the newer one.
        let [newer, older] = ["cni.dev/valid-attachments", "cni.dev/attachments"];
        let mut known = [newer, older].into_iter();
        let key = known.find(|key| network.has(key)).ok_or_else(|| {
            let reason =
                "missing; GC removes whatever it does not list, so it must be there, if empty";
            Error::invalid(newer, reason)
        })?;
        let list = network.top(key);
        let valid = list.map_or(Ok(Vec::new()), |list| attachments(list, key, &network.name))?;
        Ok(Self { network, valid })
    }

    /// Returns a function that takes a tag ([`Attachment::owner`]). It returns true if the tag
    /// belongs to an attachment of this network that the runtime does not list.
    pub fn stale(&self) -> impl Fn(&str) -> bool {
        let valid: HashSet<_> = self.valid.iter().map(Attachment::owner).collect();
        let network = &self.network.name;
        move |owner| Attachment::is_owner_in(owner, network) && !valid.contains(owner)
    }
}

fn prev_result(network: &Network) -> Result<Option<AddResult>, Error> {
    let value = network.top("prevResult").cloned();
    let read = value.map(|value| result::read(value, network.version, "prevResult"));
    read.transpose()
}

/// Returns the attachment. `Environment::read` has checked that both names are present.
fn attachment(environment: &Environment, network: &Network) -> Result<Attachment, Error> {
    let (container, interface) = environment.names.clone().ok_or_else(|| {
        let verb = environment.verb;
        Error::Environment(format!("{verb} needs CNI_CONTAINERID, CNI_IFNAME"))
    })?;
    Ok(Attachment {
        network: network.name.clone(),
        container,
        interface,
    })
}

/// An attachment in the list of GC, as the runtime spells it.
#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "containerID")]
    container: String,
    ifname: String,
}

/// Parses the list of attachments that the runtime sends with GC. A name that ADD rejects cannot
/// belong to an attachment, so the function reports such an entry and skips it. Any other invalid
/// entry is an error, because it may mean an existing attachment, whose resources must stay.
///
/// # Errors
/// [`Error::InvalidConfig`] if a name in an entry is missing, has the wrong type or is empty, or if
/// an interface name contains control characters.
fn attachments(list: &Value, key: &str, network: &NetworkName) -> Result<Vec<Attachment>, Error> {
    let entries: Vec<Listed> = json::read(list, key)?.value;
    let mut valid = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        match entry.on(network) {
            Ok(attachment) => valid.push(attachment),
            Err(reason) if entry.may_be_attached() => {
                let key = format!("{key}[{index}]");
                return Err(Error::invalid(key, reason.to_string()));
            }
            Err(reason) => note(format_args!(
                "{key}[{index}]: {reason}; no ADD takes that name, so the entry is left out"
            )),
        }
    }
    Ok(valid)
}

impl Listed {
    fn on(&self, network: &NetworkName) -> Result<Attachment, InvalidName> {
        Ok(Attachment {
            network: network.clone(),
            container: self.container.parse()?,
            interface: self.ifname.parse()?,
        })
    }

    /// Returns whether the invalid entry may belong to an existing attachment. This is so for an
    /// empty name, which runtimes written in Go send for an unknown name, and for an interface name
    /// with control characters, which the Go plugins accept.
    fn may_be_attached(&self) -> bool {
        let has_control = self.ifname.contains(char::is_control);
        self.container.is_empty() || self.ifname.is_empty() || has_control
    }
}
