//! The request of each verb: the parsed environment variables and configuration.

use std::collections::HashSet;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::attachment::InvalidName;
use crate::environment::Environment;
use crate::{
    AddResult, Attachment, CniArgs, Error, GOING_ON, Network, NetworkName, json, note, or_note,
    result,
};

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
    /// The key `prevResult`. In ADD, it is the result of the previous plugins, and `None` for the
    /// first plugin of a chain. In CHECK and RELOAD, it is the result of ADD.
    pub prev_result: Option<AddResult>,
}

/// Request of CHECK, to compare a sandbox with `prev_result`, the result of ADD. RELOAD, a verb of
/// this suite that restores firewall rules, has the same fields.
pub type CheckRequest = AddRequest;

/// Request to detach a sandbox, which may no longer exist.
#[derive(Debug, Clone)]
pub struct DelRequest {
    /// The attachment.
    pub attachment: Attachment,
    /// The path in `CNI_NETNS`. `None` if the runtime passes no path, or if the path is the
    /// plugin's own namespace and `CNI_NETNS_OVERRIDE` does not allow that. In the second case, the
    /// sandbox is gone: for example, a process of the host now has the process ID in
    /// `/proc/<pid>/ns/net`.
    pub netns: Option<PathBuf>,
    /// The configuration.
    pub network: Network,
    /// The result of ADD. `None` if the runtime does not send it or if it is invalid.
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
    /// Returns [`Self::prev_result`]. CHECK needs it, and so does a plugin that cannot be the first
    /// of a chain.
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
    /// Parses a request. Ignores values that DEL does not need: an invalid `prevResult` is reported
    /// on standard error and counts as absent, and `CNI_ARGS` is not parsed.
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
        // CRI-O still sends both keys. The newer key takes precedence.
        let [newer, older] = [VALID, "cni.dev/attachments"];
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

    /// Returns the configuration with further valid attachments: those with the tags `owners`. Returns
    /// `None` if a tag has hashes instead of names.
    pub fn keeping<'a>(&self, owners: impl Iterator<Item = &'a str>) -> Option<Network> {
        let is_here = |it: &Attachment| it.network == self.network.name;
        let further = owners.map(|it| Attachment::of_owner(it).filter(is_here));
        let valid = self.valid.iter().cloned().map(Some).chain(further);
        let listed = valid.map(|it| {
            let Attachment {
                container,
                interface,
                ..
            } = it?;
            Some(serde_json::json!({
                "containerID": container.as_str(),
                "ifname": interface.as_str(),
            }))
        });
        Some(self.network.with(VALID, listed.collect::<Option<_>>()?))
    }

    /// Returns a function that takes a tag ([`Attachment::owner`]). The returned function returns
    /// true if the tag belongs to an attachment of this network that the runtime does not list.
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

/// Returns the attachment that the request names. `Environment::read` has checked that
/// `CNI_CONTAINERID` and `CNI_IFNAME` are present.
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

/// Parses the list of attachments that the runtime sends with GC. Skips an entry whose name no ADD
/// accepts, because no such attachment can exist, and reports that on standard error. Any other
/// invalid entry is an error: it may stand for an existing attachment, whose resources must stay.
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
            Err(reason) => {
                note!("{key}[{index}]: {reason}; no ADD takes that name, so the entry is left out");
            }
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

    /// Returns whether this invalid entry may stand for an existing attachment. Returns true for an
    /// empty name, because runtimes written in Go send it for an unknown name, and for an interface
    /// name with control characters, because the Go plugins accept it.
    fn may_be_attached(&self) -> bool {
        let has_control = self.ifname.contains(char::is_control);
        self.container.is_empty() || self.ifname.is_empty() || has_control
    }
}

/// The key that lists the valid attachments.
const VALID: &str = "cni.dev/valid-attachments";
