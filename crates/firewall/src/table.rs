//! The plugin's own table in `nf_tables`: which packets have permission, and which are dropped.
//!
//! A rule in this table cannot accept a packet that another program's chain drops. So this table
//! sets a bit in the fwmark of packets that have permission, before the chains of other programs
//! see them. [`crate::permission`] contains the rules that accept packets with the bit in the
//! chains of iptables. This table clears the bit of each packet before and after these chains, so
//! no packet arrives or leaves with it.

use nft::{Chain, Family, Field, Hook, IpVersion, Rule, Set, Table, TargetType, Type};

use crate::config::Mark;

/// Returns the plugin's table with the chains for this fwmark bit. Networks with different bits
/// share its sets.
pub(crate) fn table(mark: Mark) -> Table {
    let set = |name, key: &[Type]| Set::new(name, key, TargetType::None);
    let chain = |name: &str, priority, rules| Chain::filter(name, Hook::Forward, priority, rules);
    let [link, pair] = [&[Type::InterfaceName][..], &[Type::InterfaceName; 2]];
    let bit = mark.bit();
    let clear = Rule::new("the mark is for chains in between").unmark(mark.bits());
    Table {
        family: Family::Inet,
        name: TABLE,
        sets: vec![
            set(PODS_V4, &[Type::Ipv4Address]),
            set(PODS_V6, &[Type::Ipv6Address]),
            set(BRIDGES, link),
            set(BRIDGE_PAIRS, pair),
            set(ISOLATED_PAIRS, pair),
            set(MEMBERS, pair),
            set(ISOLATED_MEMBERS, pair),
        ],
        chains: vec![
            chain("isolate", ISOLATING, isolation()),
            chain(&format!("mark-{bit}"), MARKING, permission(mark)),
            chain(&format!("unmark-{bit}"), UNMARKING, vec![clear]),
        ],
    }
}

/// Returns the plugin's table with only the sets of addresses.
pub(crate) fn address_sets() -> Table {
    sets(|name| [PODS_V4, PODS_V6].contains(&name))
}

/// Returns the plugin's table with only the sets of bridges and of their members.
pub(crate) fn bridge_sets() -> Table {
    sets(|name| ![PODS_V4, PODS_V6].contains(&name))
}

/// Returns the plugin's table with only the sets for whose names `is_wanted` returns true. The
/// table lists no chains, so an update leaves the chains of all fwmark bits alone.
fn sets(is_wanted: impl Fn(&str) -> bool) -> Table {
    let mut table = table(Mark::DEFAULT);
    table.sets.retain(|it| is_wanted(it.name));
    table.chains.clear();
    table
}

/// Returns the table that drops frames from one isolated port of a bridge to another. The table
/// `cni-firewall` does not suffice, because its chains see only packets in the `forward` hook of
/// IP. Bridged frames pass this hook only with `br_netfilter`, which by default excludes frames
/// with a VLAN tag (`bridge-nf-filter-vlan-tagged` is 0).
pub(crate) fn frames() -> Table {
    let ports = Set::new(ISOLATED_PORTS, [Type::InterfaceName], TargetType::None);
    let between = Rule::new("between isolated ports")
        .when_in(&[Field::InputName], ISOLATED_PORTS)
        .when_in(&[Field::OutputName], ISOLATED_PORTS)
        .drop();
    Table {
        family: Family::Bridge,
        name: FRAMES_TABLE,
        sets: vec![ports],
        chains: vec![Chain::filter(
            "isolate",
            Hook::Forward,
            BRIDGE_FILTER,
            vec![between],
        )],
    }
}

/// Returns the plugin's two tables, in which attachments have elements: [`TABLE`], with the chains
/// for the default fwmark bit, and [`FRAMES_TABLE`].
pub fn tables() -> [Table; 2] {
    [table(Mark::DEFAULT), frames()]
}

/// Returns whether the chain of this name in `table` marks packets or clears the mark, for any
/// fwmark bit.
pub fn is_chain_of_mark(table: &Table, chain: &str) -> bool {
    let mut prefixes = ["mark-", "unmark-"].into_iter();
    table.name == TABLE && prefixes.any(|it| chain.starts_with(it))
}

/// Returns the rules that drop packets within an isolated bridge, and from one bridge with an
/// ingress policy to another.
fn isolation() -> Vec<Rule> {
    let through = [Field::InputName, Field::OutputName];
    let [from, to] = [&through[..1], &through[1..]];
    vec![
        Rule::new("within an isolated bridge")
            .when_in(&through, ISOLATED_PAIRS)
            .drop(),
        Rule::new("within a bridge")
            .when_in(&through, BRIDGE_PAIRS)
            .return_to_caller(),
        Rule::new("from bridge to bridge")
            .when_in(from, BRIDGES)
            .when_in(to, BRIDGES)
            .drop(),
    ]
}

/// Returns the rules that clear the mark of each packet, and then mark packets from containers,
/// replies to containers, and packets whose destination was translated to a container (DNAT).
fn permission(mark: Mark) -> Vec<Rule> {
    let bits = mark.bits();
    let mut rules = vec![Rule::new("no packet brings the mark along").unmark(bits)];
    for (version, set) in [(IpVersion::V4, PODS_V4), (IpVersion::V6, PODS_V6)] {
        let (source, destination) = (Field::Source(version), Field::Destination(version));
        let of = |comment, field| Rule::new(comment).when_ip(version).when_in(&[field], set);
        rules.extend([
            of("from pods", source).mark(bits),
            of("answers to pods", destination)
                .when_connected()
                .mark(bits),
            of("ports of the host", destination)
                .when_translated()
                .mark(bits),
        ]);
    }
    rules
}

/// The plugin's table of family `inet`.
pub const TABLE: &str = "cni-firewall";

/// The plugin's table of family `bridge`. Its name differs from [`TABLE`], so that callers never
/// mistake an element in it for a permission.
pub const FRAMES_TABLE: &str = "cni-isolation";

/// Sets of the containers' addresses that have permission, one set for each IP family.
pub(crate) const PODS_V4: &str = "pods4";
pub(crate) const PODS_V6: &str = "pods6";

/// Bridges with an ingress policy. No packet passes from one of them to another.
pub(crate) const BRIDGES: &str = "bridges";

/// Pairs of an input and an output interface that are the same bridge. They match packets within
/// the bridge. The first set is for the policy `same-bridge`, which lets these packets pass. The
/// second is for `isolated`, which drops them.
pub(crate) const BRIDGE_PAIRS: &str = "bridge-pairs";
pub(crate) const ISOLATED_PAIRS: &str = "isolated-pairs";

/// Pairs of an attachment and its bridge: the first set for the policy `same-bridge`, the second
/// for `isolated`. No rule uses these sets. The plugin reads them to find out whether a bridge
/// still has a member. The shared elements of the bridge stay until its last member is deleted.
pub(crate) const MEMBERS: &str = "members";
pub(crate) const ISOLATED_MEMBERS: &str = "isolated-members";

/// Bridge ports of attachments with the ingress policy `isolated`.
pub(crate) const ISOLATED_PORTS: &str = "isolated-ports";

/// Priority of filter chains in the bridge family (`NF_BR_PRI_FILTER_BRIDGED`).
const BRIDGE_FILTER: i32 = -200;

/// Priorities, in this order, of the chain that isolates bridges and of the chain that marks
/// packets. Both are before `NF_IP_PRI_FILTER`, and after `NF_IP_PRI_MANGLE`, at which other
/// programs set marks.
const ISOLATING: i32 = -20;
const MARKING: i32 = -10;

/// Priority of the chain that clears the bit: after all priorities that have a name in nft(8).
const UNMARKING: i32 = 1000;
