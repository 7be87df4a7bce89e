//! Rules of the Go plugins in a firewall.

use std::collections::BTreeSet;
use std::net::IpAddr;

use node::output_of;

use crate::reference::Mark;

/// A table of a firewall with rules of the Go plugins.
#[derive(Debug)]
pub(super) struct Table {
    pub place: Place,
    /// The chains or rules of single attachments.
    pub remnants: Vec<Remnant>,
    /// Commands for [`Place::execute`] that remove what all attachments share; `None` if the table
    /// has nothing of this.
    pub shared: Option<Vec<String>>,
    /// Bridges that the rules in `CNI-ISOLATION-STAGE-1` and `-2` isolate. All attachments share
    /// these rules.
    pub bridges: BTreeSet<String>,
}

impl Table {
    /// Returns whether the table has rules of the Go plugins.
    pub fn has_rules(&self) -> bool {
        !self.remnants.is_empty() || self.shared.is_some()
    }
}

/// A chain or rule that a Go plugin made for one attachment, live or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remnant {
    /// The name of the chain, or the identifier of the rule in the table.
    pub name: String,
    /// Text that names the attachment: the comment of the Go plugin's rule or, without a comment,
    /// the address. `no rule jumps to it` for a chain without such a comment.
    pub owner: String,
    pub mark: Mark,
    /// Addresses in the rules: those of the sandbox, and perhaps addresses of the host, such as
    /// 127.0.0.1.
    pub addresses: BTreeSet<IpAddr>,
    /// Commands for [`Place::execute`] that remove the chain or rule.
    pub commands: Vec<String>,
}

/// Where a table is. Its `Display` is the command with which an administrator lists the table.
#[derive(Debug, Clone, derive_more::Display)]
pub(super) enum Place {
    #[display("{program}-save -t {table}")]
    Iptables {
        /// Prefix of the implementation's programs, such as `iptables-nft`.
        program: String,
        table: &'static str,
    },
    /// In `nf_tables`: family and name.
    #[display("nft list table {_0}")]
    Nft(String),
}

impl Place {
    /// Executes commands of the firewall's own program, all of them or none.
    pub fn execute(&self, mut commands: Vec<String>) -> anyhow::Result<()> {
        let output = match self {
            Self::Iptables { program, table } => {
                // Rules are deleted (-D) before chains are flushed (-F) and deleted (-X).
                commands.sort_by_key(|it| it.get(..2).map(str::to_owned));
                let script = format!("*{table}\n{}\nCOMMIT\n", commands.join("\n"));
                let restore = format!("{program}-restore");
                output_of(&[&restore, "--wait", "--noflush"], script.as_bytes())
            }
            Self::Nft(_) => {
                let script = commands.join("\n") + "\n";
                output_of(&["nft", "--file", "-"], script.as_bytes())
            }
        };
        output.map(drop)
    }
}
