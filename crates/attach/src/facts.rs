//! Facts that plugins with veth pairs share.

use facts::{Elements, MissingFeature, Need, Proof, is_set};
use netlink::{Connection, MacAddress, VethEnd, VethPair};
use netns::Netns;

use crate::masquerade::{self, MASQUERADE_TABLE};

/// The elements that masquerade.
pub const MASQUERADE: Elements = Elements {
    table: MASQUERADE_TABLE,
    tables: || vec![masquerade::table()],
    need: Need::with(&["ipMasq"]),
    are_expected: |added| is_set(added.keys, "ipMasq"),
    proof: Proof::HostLink,
};

/// Tries to make a veth pair in this thread's network namespace, for `plugin`, with the host's end
/// as a port of the bridge with the index `master`. Returns what the kernel lacks.
///
/// # Errors
/// The network namespace cannot be opened.
pub fn missing_pairs(
    connection: &Connection,
    plugin: &'static str,
    master: Option<u32>,
) -> anyhow::Result<Vec<MissingFeature>> {
    let [host, container] = ["host", "pod"].map(|side| format!("{plugin}-{side}"));
    let end = |name, last| VethEnd {
        name,
        mac: MacAddress([2, 0, 0, 0, 0, last]),
    };
    let pair = VethPair {
        host: end(&host, 2),
        container: end(&container, 3),
        mtu: 1500,
        master,
        alias: "a pair to try whether there can be one",
        sandbox: &Netns::own()?,
    };
    let tried = connection.add_veth(&pair, Vec::new());
    Ok(MissingFeature::of(tried, "veth pairs (CONFIG_VETH)", &[]))
}
