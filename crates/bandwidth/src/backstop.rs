//! The backstop: a second egress limit of a sandbox, in `nf_tables`, at the host's end of the veth
//! pair.
//!
//! The first limit is a qdisc at the container's end. Root in a sandbox can remove it, and a process
//! with `CAP_NET_RAW` can send past it (`PACKET_QDISC_BYPASS`). `nf_tables` sees such packets. Its
//! rate is higher than that of the qdisc, so it drops no packet that came through the qdisc.

use attach::{Protection, Removal, coded};
use cni::{Error, note};
use netlink::Link;
use nft::{
    Chain, Change, Connection, Element, Family, Field, Hook, Limit, Rule, Set, Table, TargetType,
    Type, Value, supported,
};
use tc::Traffic;

use crate::policy;

/// The backstop (second egress limit) of one attachment: its `nf_tables` elements and their table.
#[derive(Debug)]
pub(crate) struct Backstop {
    protection: Protection,
    /// One element for each set of the table, to look up the host link's elements in the kernel.
    /// The key of each element is the name of the host link. The elements have no target.
    places: [Element; 2],
}

impl Backstop {
    /// Computes the backstop of the egress limit `limit`, for packets of `traffic` that arrive at
    /// `host_link` from the sandbox. Tags its elements with `owner`, and changes nothing in the
    /// kernel.
    ///
    /// # Errors
    /// Code 7: the rate is too high for `nf_tables`.
    pub fn of(
        limit: &tc::Limit,
        traffic: &Traffic,
        host_link: &Link,
        owner: &str,
    ) -> Result<Self, Error> {
        let bytes = limit.rate.bytes();
        let rate = bytes.saturating_add(bytes / MARGIN);
        let limit = Limit::new(rate, limit.burst.bytes().saturating_add(SLACK));
        let reason = "nf_tables cannot count this rate; choose one below 128 Gbit/s";
        let limit = limit.ok_or_else(|| Error::invalid("egressRate", reason))?;
        let mut table = table(family_of(host_link));
        let places = [LIMITS, POLICIES]
            .map(|set| Element::new(set, &[Value::InterfaceName(&host_link.name)], owner));
        let [limits, policies] = places.clone();
        let mut elements = vec![limits.limited_to(limit)];
        if let Some(chain) = policy::of(traffic, limited) {
            elements.push(policies.to_chain(&chain.name));
            table.chains.push(chain);
        }
        Ok(Self {
            protection: Protection { table, elements },
            places,
        })
    }

    /// Creates or repairs the backstop's table, and adds the attachment's elements. Deletes all
    /// other elements of the same link. If the attachment has no element yet, calls `on_new` first,
    /// so that the caller can prepare the rollback.
    ///
    /// # Errors
    /// - Code 11: other processes keep changing the rules.
    /// - Code 100: the kernel lacks a required part of `nf_tables`, or refuses a request.
    pub fn put(&self, on_new: impl FnOnce()) -> anyhow::Result<()> {
        let connection = Connection::open().map_err(plugin_error)?;
        let Protection { table, elements } = &self.protection;
        let is_own = |it: &Element| self.places.iter().any(|place| place.owner == it.owner);
        let mut on_new = Some(on_new);
        let mut replaced = Vec::new();
        let updated = connection.update(table, || {
            let there = connection.holders(table, &self.places)?.into_iter();
            let there: Vec<_> = there.flatten().collect();
            // The transaction may need several attempts, and a DEL may remove the attachment's
            // elements between two of them. `on_new` must run only once.
            if !there.iter().any(is_own)
                && let Some(on_new) = on_new.take()
            {
                on_new();
            }
            replaced.clone_from(&there);
            Ok::<_, nft::Error>(Change::of(there, elements.clone()))
        });
        let updated = updated.map_err(plugin_error)?;
        replaced.retain(|it| !elements.contains(it));
        if !replaced.is_empty() {
            let deleted = connection.delete_chains_of(table, &replaced);
            deleted.map_err(plugin_error)?;
        }
        updated.warning(table).iter().for_each(note);
        Ok(())
    }

    /// Removes the backstop's elements from `nf_tables` if `is_gone` returns true: RELOAD calls this
    /// function if a DEL or GC has retired the attachment's record meanwhile.
    ///
    /// # Errors
    /// As [`attach::take_back`].
    pub fn take_back(self, is_gone: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        attach::take_back(&[self.protection], is_gone)
    }

    /// Returns a message for the operator for each change that [`Self::put`] would make.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn differences(&self) -> anyhow::Result<Vec<String>> {
        let Protection { table, elements } = &self.protection;
        let is_wanted = |place: &Element| elements.iter().any(|it| it.place() == place.place());
        let differences = || {
            let connection = Connection::open()?;
            let mut found = connection.differences(table, elements)?;
            for place in self.places.iter().filter(|it| !is_wanted(it)) {
                if connection.holder(table, place)?.is_some() {
                    found.push(format!("nf_tables: {place} was not asked for"));
                }
            }
            if let Some(last) = found.last_mut() {
                last.push_str(" (`cnitool reload` puts it back)");
            }
            Ok(found)
        };
        let found = supported(differences()).map_err(coded)?;
        Ok(found.unwrap_or_else(|| vec![NEEDED.to_owned()]))
    }
}

/// Returns a warning for the operator if the kernel lacks a part of `nf_tables` that backstops
/// (second egress limits) need, and `None` if it lacks none. Finds this out by a dry run in the
/// network namespace of the calling thread.
///
/// # Errors
/// The kernel refuses a request for a reason other than a missing feature.
pub(crate) fn missing() -> anyhow::Result<Option<String>> {
    let connection = Connection::open();
    let tried = connection.and_then(|it| tables().iter().try_for_each(|table| it.dry_run(table)));
    match tried {
        Err(error) if error.is_unsupported() => Ok(Some(format!("{:#}", plugin_error(error)))),
        tried => tried.map(|()| None).map_err(coded),
    }
}

/// Converts an error of `nf_tables` to one of the plugin.
fn plugin_error(error: nft::Error) -> anyhow::Error {
    if error.is_unsupported() {
        coded(error).context(NEEDED)
    } else {
        coded(error)
    }
}

/// Returns the family of the table in which packets from the sandbox have `host_link` as their
/// input interface: `bridge` if the link is the port of a bridge, `inet` otherwise. A table of
/// family `inet` sees packets of a bridge port, if at all, with the bridge as their input
/// interface.
fn family_of(host_link: &Link) -> Family {
    match host_link.port {
        Some(_) => Family::Bridge,
        None => Family::Inet,
    }
}

/// Returns the table with the backstops of all attachments whose packets this family sees
/// ([`family_of`]). The set `limits` maps a link to its limit. If the limit applies only to some
/// subnets, the set `policies` maps the link to the chain with these subnets.
fn table(family: Family) -> Table {
    let set = |name, target| Set::new(name, [Type::InterfaceName], target);
    let by_policy = Rule::new("limited for some subnets").goto_by(&[Field::InputName], POLICIES);
    Table {
        family,
        name: TABLE,
        sets: vec![
            set(LIMITS, TargetType::Limit),
            set(POLICIES, TargetType::Chain),
        ],
        chains: vec![Chain::filter(
            "prerouting",
            Hook::Prerouting,
            BEFORE_ALL_ELSE,
            vec![by_policy, limited(Rule::new("limited"))],
        )],
    }
}

/// Returns the plugin's two `nf_tables` tables, one of family `bridge` and one of `inet`. Their
/// elements are the backstops (second egress limits) of all attachments.
pub fn tables() -> [Table; 2] {
    [Family::Bridge, Family::Inet].map(table)
}

/// Removes the backstop of the attachment with the tag `owner`.
///
/// # Errors
/// As [`Removal::remove`].
pub(crate) fn remove(owner: &str) -> anyhow::Result<()> {
    let mut removal = Removal::start(tables())?;
    let removed = removal.remove(|it| it == owner);
    removal.finish();
    removed
}

/// The name of the plugin's two `nf_tables` tables, one of family `bridge` and one of `inet`.
pub const TABLE: &str = "cni-bandwidth";

/// Returns `rule`, extended to drop packets that exceed the limit of their input interface.
fn limited(rule: Rule) -> Rule {
    rule.when_in(&[Field::InputName], LIMITS).drop()
}

const LIMITS: &str = "limits";
const POLICIES: &str = "policies";

/// Priority of the base chains: `NF_BR_PRI_NAT_DST_BRIDGED` in the family `bridge`, `NF_IP_PRI_RAW`
/// in `inet`. It precedes connection tracking and most other rules, so that these spend no time on
/// packets that the backstop drops.
const BEFORE_ALL_ELSE: i32 = -300;

/// Divisor for the margin: the backstop's rate exceeds the rate of the qdisc by a tenth of it.
const MARGIN: u64 = 10;

/// Difference in bytes between the backstop's burst and the smaller burst of the qdisc. The backstop
/// needs the larger burst because the qdisc passes packets on in batches.
const SLACK: u32 = 64 << 10;

const NEEDED: &str = "nf_tables cannot limit what a container sends";
