//! The plugins of the suite and their roles (`crates/plugins.txt`).

/// What a plugin does in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Connects the sandbox to the host by a veth pair. Its host end proves that the attachment
    /// exists.
    InterfacePair,
    /// Makes or configures a link that has no other end on the host.
    InterfaceSingle,
    /// Leases addresses for an interface plugin.
    Ipam {
        /// Whether ADD may use the container's link, so that the link must exist before.
        needs_link: bool,
    },
    /// Needs `prevResult`.
    Chained,
}

/// Returns the name and the role of each plugin of the suite.
pub fn suite() -> impl Iterator<Item = (&'static str, Role)> {
    let lines = include_str!("../../plugins.txt").lines();
    lines.filter_map(|line| {
        let (name, role) = line.split_once(' ')?;
        Some((name, Role::parse(role.trim_start())?))
    })
}

/// Returns the role of the plugin `name`; `None` if it does not belong to the suite.
pub fn role(name: &str) -> Option<Role> {
    suite().find(|it| it.0 == name).map(|it| it.1)
}

impl Role {
    fn parse(role: &str) -> Option<Self> {
        Some(match role {
            "interface pair" => Self::InterfacePair,
            "interface single" => Self::InterfaceSingle,
            "ipam" => Self::Ipam { needs_link: true },
            "ipam before the link" => Self::Ipam { needs_link: false },
            "chained" => Self::Chained,
            _ => return None,
        })
    }
}
