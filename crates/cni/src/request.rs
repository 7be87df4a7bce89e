//! What each verb is asked with.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::args::CniArgs;
use crate::attachment::{Attachment, AttachmentId, InvalidName};
use crate::environment::Environment;
use crate::error::Error;
use crate::json;
use crate::network::Network;
use crate::result::{self, AddResult};
use crate::stderr::note;

/// Attach a sandbox.
#[derive(Debug, Clone)]
pub struct AddRequest {
    /// Whom it is for.
    pub attachment: Attachment,
    /// `CNI_NETNS`. Nothing but opening it is promised; it is not the plugin's own
    /// namespace, unless `CNI_NETNS_OVERRIDE` allows that.
    pub netns: PathBuf,
    /// The text of `CNI_ARGS`; [`Self::args`] parses it.
    pub args: String,
    /// The configuration.
    pub network: Network,
    /// What the plugins before this one did; `None` for the first of a chain.
    pub prev_result: Option<AddResult>,
}

/// Compare a sandbox with what ADD left, which is `prev_result`.
pub type CheckRequest = AddRequest;

/// Detach a sandbox of which nothing may be left.
#[derive(Debug, Clone)]
pub struct DelRequest {
    /// Whose it was.
    pub attachment: Attachment,
    /// `CNI_NETNS`, where the runtime still has it and it is not the plugin's own
    /// namespace, which a process ID that was used again makes it.
    pub netns: Option<PathBuf>,
    /// The configuration.
    pub network: Network,
    /// The last result, where the runtime still has it and it can be read.
    pub prev_result: Option<AddResult>,
}

/// Remove what belongs to no attachment in `valid`.
#[derive(Debug, Clone)]
pub struct GcRequest {
    /// The configuration.
    pub network: Network,
    /// Every attachment of the network that is still in use. Empty: none is.
    pub valid: Vec<AttachmentId>,
}

impl GcRequest {
    /// The listed attachments with the network's name to them.
    pub fn valid_attachments(&self) -> impl Iterator<Item = Attachment> {
        self.valid.iter().map(|id| Attachment {
            network: self.network.name.clone(),
            container: id.container.clone(),
            interface: id.interface.clone(),
        })
    }
}

/// Could an ADD succeed?
#[derive(Debug, Clone)]
pub struct StatusRequest {
    /// The configuration.
    pub network: Network,
}

impl AddRequest {
    /// What the plugins before this one did, for a plugin that cannot be the first, and
    /// for CHECK.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where there is no `prevResult`.
    pub fn chained(&self) -> Result<&AddResult, Error> {
        let reason = "missing; the plugin needs the result of those before it in the chain";
        self.prev_result
            .as_ref()
            .ok_or_else(|| Error::invalid("prevResult", reason))
    }

    /// `CNI_ARGS`, for a plugin that has arguments. Other plugins ignore the variable, as the reference's do.
    ///
    /// # Errors
    /// [`Error::Environment`] where a pair has not exactly one `=`.
    pub fn args(&self) -> Result<CniArgs, Error> {
        CniArgs::parse(&self.args)
    }

    pub(crate) fn parse(environment: Environment, network: Network) -> Result<Self, Error> {
        let prev_result = prev_result(&network)?;
        if environment.is_in_own_namespace() {
            let path = environment.netns.unwrap_or_default();
            return Err(Error::OwnNamespace { path });
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
    /// DEL must not fail for what it does not need: a `prevResult` that cannot be read is
    /// told and left out, and `CNI_ARGS` is not looked at.
    pub(crate) fn parse(environment: Environment, network: Network) -> Result<Self, Error> {
        let prev_result = prev_result(&network).unwrap_or_else(|error| {
            note(format_args!("{error}; going on without it"));
            None
        });
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
        // CRI-O still sends the older name beside the newer one.
        let known = [VALID_ATTACHMENTS, "cni.dev/attachments"];
        let key = known
            .into_iter()
            .find(|key| network.has(key))
            .ok_or_else(|| {
                Error::invalid(
                    VALID_ATTACHMENTS,
                    "missing; GC removes whatever it does not list, so it must be there, if empty",
                )
            })?;
        let valid = match network.top(key) {
            Some(list) => attachments(list, key)?,
            None => Vec::new(),
        };
        Ok(Self { network, valid })
    }
}

fn prev_result(network: &Network) -> Result<Option<AddResult>, Error> {
    let value = network.top("prevResult").cloned();
    let read = value.map(|value| result::read(value, network.version, "prevResult"));
    read.transpose()
}

/// The environment is checked before anything else, so the two names are there.
fn attachment(environment: &Environment, network: &Network) -> Result<Attachment, Error> {
    match (&environment.container, &environment.interface) {
        (Some(container), Some(interface)) => Ok(Attachment {
            network: network.name.clone(),
            container: container.clone(),
            interface: interface.clone(),
        }),
        _ => Err(Error::Environment {
            problem: format!("{} needs CNI_CONTAINERID, CNI_IFNAME", environment.verb),
        }),
    }
}

/// An attachment in the list of GC, as the runtime wrote it.
#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "containerID")]
    container: String,
    ifname: String,
}

/// A name that no ADD takes is of no attachment, and its entry protects nothing: it is reported and left out. Any
/// other entry that cannot be read may be meant for a live one.
///
/// # Errors
/// [`Error::InvalidConfig`] where an entry or one of its names is missing or of the wrong type.
fn attachments(list: &Value, key: &str) -> Result<Vec<AttachmentId>, Error> {
    let entries: Vec<Listed> = json::read(list, key)?.value;
    let mut valid = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        match entry.id() {
            Ok(id) => valid.push(id),
            Err(reason) if entry.may_be_attached() => {
                return Err(Error::invalid(
                    format!("{key}[{index}]"),
                    reason.to_string(),
                ));
            }
            Err(reason) => note(format_args!(
                "{key}[{index}]: {reason}; no ADD takes that name, so the entry is left out"
            )),
        }
    }
    Ok(valid)
}

impl Listed {
    fn id(&self) -> Result<AttachmentId, InvalidName> {
        Ok(AttachmentId {
            container: self.container.parse()?,
            interface: self.ifname.parse()?,
        })
    }

    /// A runtime written in Go sends an empty text for a name that it does not know. The reference takes control
    /// characters in names of interfaces.
    fn may_be_attached(&self) -> bool {
        let has_control = self.ifname.contains(char::is_control);
        self.container.is_empty() || self.ifname.is_empty() || has_control
    }
}

const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
