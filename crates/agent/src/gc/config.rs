//! The section `gc` of the configuration file.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use node::RUNTIME_SOCKETS;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// The section `gc` of the configuration file: when and how stale attachments are removed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The time between two rounds.
    #[serde(deserialize_with = "interval")]
    pub interval: Duration,
    /// Time limit of each plugin's DEL.
    #[serde(deserialize_with = "del_timeout")]
    pub del_timeout: Duration,
    /// The sockets of container runtimes.
    #[serde(deserialize_with = "runtime_socket")]
    pub runtime_socket: RuntimeSocket,
    /// Whether rounds only report what they would remove.
    pub dry_run: bool,
}

/// The container runtimes that the agent asks for the node's sandboxes, by their sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuntimeSocket {
    /// The runtimes at the sockets of [`RUNTIME_SOCKETS`]. At least one socket has to exist.
    Usual,
    /// The runtime at this socket.
    At(PathBuf),
    /// No socket, because no runtime of this node serves the CRI.
    None,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interval: Duration::from_mins(5),
            del_timeout: Duration::from_mins(2),
            runtime_socket: RuntimeSocket::Usual,
            dry_run: false,
        }
    }
}

impl RuntimeSocket {
    /// Returns the paths at which a runtime may listen: the configured one, the usual ones, or none
    /// for [`Self::None`].
    pub fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Usual => RUNTIME_SOCKETS.map(PathBuf::from).to_vec(),
            Self::At(path) => vec![path.clone()],
            Self::None => Vec::new(),
        }
    }
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    time(from, SHORTEST_INTERVAL)
}

fn del_timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    time(from, SHORTEST_DEL)
}

fn time<'de, D: Deserializer<'de>>(from: D, shortest: Duration) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = |reason: &dyn Display| D::Error::custom(format_args!("{text:?}: {reason}"));
    let time = humantime::parse_duration(&text).map_err(|error| wrong(&error))?;
    if time < shortest {
        return Err(wrong(&format_args!("it is shorter than {shortest:?}")));
    }
    Ok(time)
}

fn runtime_socket<'de, D: Deserializer<'de>>(from: D) -> Result<RuntimeSocket, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else {
        return Ok(RuntimeSocket::None);
    };
    match text.strip_prefix("unix://").unwrap_or(&text) {
        "" => Ok(RuntimeSocket::Usual),
        "none" => Ok(RuntimeSocket::None),
        path if path.starts_with('/') => Ok(RuntimeSocket::At(path.into())),
        _ => Err(D::Error::custom(format_args!(
            "{text:?}: expected an absolute path, \"none\" or null"
        ))),
    }
}

/// The shortest allowed interval between rounds. A round reads all leases, links and elements of
/// `nf_tables`, so rounds should be rare.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(30);

/// The shortest allowed time limit of a DEL. A useful limit is longer, because a busy node needs
/// some seconds for a DEL.
const SHORTEST_DEL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_section_has_the_defaults() {
        assert_eq!(parse("{}"), Ok(Config::default()));
    }

    #[test]
    fn runtime_socket_is_a_path_or_none() {
        let at = |path: &str| RuntimeSocket::At(path.into());
        for (text, expected) in [
            (r#""""#, RuntimeSocket::Usual),
            ("null", RuntimeSocket::None),
            (r#""none""#, RuntimeSocket::None),
            (
                r#""/run/k3s/containerd/containerd.sock""#,
                at("/run/k3s/containerd/containerd.sock"),
            ),
            (r#""unix:///run/crio/crio.sock""#, at("/run/crio/crio.sock")),
        ] {
            let config = parse(&format!(r#"{{"runtimeSocket": {text}}}"#)).unwrap();
            assert_eq!(config.runtime_socket, expected, "{text}");
        }
    }

    #[test]
    fn refusals_name_the_value() {
        for (text, words) in [
            (r#"{"interval": "29s"}"#, r#""29s": it is shorter than 30s"#),
            (r#"{"interval": "soon"}"#, r#""soon": "#),
            (r#"{"interval": 300}"#, "invalid type: integer `300`"),
            (
                r#"{"delTimeout": "1ms"}"#,
                r#""1ms": it is shorter than 1s"#,
            ),
            (
                r#"{"runtimeSocket": "run/crio.sock"}"#,
                r#""run/crio.sock": "#,
            ),
            (r#"{"runtimeSocket": 5}"#, "invalid type: integer `5`"),
            (r#"{"dryRun": "yes"}"#, r#"invalid type: string "yes""#),
            (r#"{"intervall": "5m"}"#, "unknown field `intervall`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(words), "{text}: {error}");
        }
    }
}
