//! Compares a table in the kernel with its description ([`Table`]), and repairs the differences.

use std::collections::HashSet;

use crate::expression::ACCEPT;
use crate::message::{self, TABLE_FLAGS};
use crate::raw::{CHAIN_HOOK, CHAIN_POLICY, RULE_CHAIN, RawMessage};
use crate::{
    Chain, Change, Connection, Counts, Error, Message, Set, Table, Updated, count, rule_place,
};

/// Netlink messages that repair or recreate a table.
pub(crate) enum Repairs {
    /// Messages that repair the table. The caller adds them to its own transaction, which changes
    /// elements. Empty if the table needs no repair.
    InPlace(Vec<Message>),
    /// Messages for a separate transaction. They recreate the table ([`Updated::Table`]), or repair
    /// chains and the numbers in sets of counts ([`Updated::Rules`]). The caller commits them, and
    /// then reads the elements and counts that it wants to change.
    Alone(Vec<Message>, Updated),
}

/// State of a table in the kernel.
struct State<'t> {
    /// All chains of the table's description, each with its content in the kernel.
    chains: Vec<(&'t Chain, Content)>,
    /// Whether the table has the flag `dormant`: the kernel then ignores the table's chains.
    is_dormant: bool,
    /// Whether the kernel lacks one of the described sets that no rule uses. Only these sets are
    /// looked up: the kernel keeps a set as long as a rule uses it.
    lacks_set: bool,
}

/// Content of a chain in the kernel, compared with the chain's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Exactly the described rules and, in a base chain, the policy `accept`.
    Described,
    /// All rules that another release of this suite wrote ([`rule_place::is_complete`]) and, in a
    /// base chain, the policy `accept`.
    OfAnotherRelease,
    /// Anything else, such as missing or additional rules, or no chain.
    Damaged,
}

impl<'t> State<'t> {
    /// Returns the described chains whose content satisfies `is_meant`.
    fn with(&self, is_meant: impl Fn(Content) -> bool) -> Vec<&'t Chain> {
        let chains = self.chains.iter().filter(|(_, it)| is_meant(*it));
        chains.map(|(chain, _)| *chain).collect()
    }
}

impl Repairs {
    pub fn into_messages(self) -> Vec<Message> {
        match self {
            Self::InPlace(messages) | Self::Alone(messages, _) => messages,
        }
    }
}

impl Connection {
    /// Returns netlink messages that repair or recreate `table`; none if it needs no repair. A
    /// repair does not touch chains that already have the described rules, because a process that
    /// deletes chains or rules has to wait until the kernel has freed them.
    pub(crate) fn repairs(&self, table: &Table) -> Result<Repairs, Error> {
        let state = self.state(table)?;
        let broken = state.with(|it| it != Content::Described);
        let is_broken = state.lacks_set || !broken.is_empty();
        // The kernel refuses a transaction that both wakes a table and adds base chains to it.
        if state.is_dormant && is_broken {
            return Ok(Repairs::Alone(vec![table.create()], Updated::Rules));
        }
        if !is_broken {
            let wake = state.is_dormant.then(|| table.create());
            return Ok(Repairs::InPlace(wake.into_iter().collect()));
        }
        let misfits = self.misfits(table, &broken)?;
        if !self.is_repairable(table, &misfits)? {
            return Ok(Repairs::Alone(self.recreation(table)?, Updated::Table));
        }
        let replaced = misfits.iter().map(|(chain, _)| &chain.name);
        let mut messages: Vec<_> = replaced.map(|it| table.delete_chain(it)).collect();
        messages.extend(creation(table, &broken));
        messages.extend(broken.iter().map(|chain| table.flush_chain(chain)));
        messages.extend(broken.iter().flat_map(|chain| table.append_rules(chain)));
        let recount = Change {
            counts: Counts::Listed,
            ..Change::default()
        };
        let counts = self.count(table, &recount)?;
        if counts.is_empty() {
            return Ok(Repairs::InPlace(messages));
        }
        messages.extend(counts);
        Ok(Repairs::Alone(messages, Updated::Rules))
    }

    /// Returns texts for the operator about damage of `table`: chains that are missing or changed,
    /// and the flag `dormant`. [`Self::update`] repairs this damage. A chain with all rules of
    /// another release of this suite is not damaged, although [`Self::update`] replaces these
    /// rules. If there is such a chain, missing chains are no damage either.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn damage(&self, table: &Table) -> Result<Vec<String>, Error> {
        let name = table.name;
        let state = self.state(table)?;
        let damaged = state.with(|it| it == Content::Damaged);
        let found = self.found(table, &damaged)?;
        let changed = damaged.iter().filter_map(|Chain { name: chain, .. }| {
            let subject = format!("chain {chain} of nf_tables table {name}");
            if found.iter().any(|(it, _)| it.name == *chain) {
                return Some(format!("{subject} was changed"));
            }
            // A missing chain is no damage if another release wrote chains of the table: that
            // release may not have this chain.
            let others = state.with(|it| it == Content::OfAnotherRelease);
            others.is_empty().then(|| format!("{subject} is missing"))
        });
        let dormant = state
            .is_dormant
            .then(|| format!("nf_tables table {name} is dormant"));
        Ok(changed.chain(dormant).collect())
    }

    /// Returns those of `chains` that exist in the kernel, each with the kernel's report about it.
    fn found<'t>(&self, table: &Table, chains: &[&'t Chain]) -> Result<Vec<Found<'t>>, Error> {
        let reports = chains.iter().map(|it| table.get_chain(&it.name));
        let reports = self.find_each(reports)?;
        let found = chains.iter().zip(reports);
        let found = found.filter_map(|(chain, it)| Some((*chain, it?)));
        Ok(found.collect())
    }

    /// Returns whether `table` has to be recreated. This is so if a set or chain in the kernel has
    /// the name of a described one, but differs from it in a way that cannot be repaired.
    pub(crate) fn is_foreign(&self, table: &Table) -> Result<bool, Error> {
        let chains: Vec<_> = table.chains.iter().collect();
        let misfits = self.misfits(table, &chains)?;
        Ok(!self.is_repairable(table, &misfits)?)
    }

    /// Returns whether the table can be repaired without being recreated. `misfits` are the chains
    /// whose hook, priority or type differs in the kernel. A base chain can be replaced alone,
    /// because no rule and no element points to it. A chain without a hook in the kernel, or a set,
    /// can be replaced only together with the table.
    fn is_repairable(&self, table: &Table, misfits: &[Found<'_>]) -> Result<bool, Error> {
        let mut misfits = misfits.iter();
        let are_bases = misfits.all(|(_, found)| found.value(CHAIN_HOOK).is_some());
        Ok(are_bases && self.fitting(table)?.len() == table.sets.len())
    }

    /// Returns those of `chains` whose hook, priority or type differs in the kernel, each with the
    /// kernel's report about it.
    fn misfits<'t>(&self, table: &Table, chains: &[&'t Chain]) -> Result<Vec<Found<'t>>, Error> {
        let mut found = self.found(table, chains)?;
        found.retain(|(chain, it)| !chain.fits(it));
        Ok(found)
    }

    /// Returns netlink messages that delete the table, and create it again with its elements. Two
    /// kinds of elements are lost:
    ///
    /// - elements of a set whose key or target has other types in the kernel;
    /// - elements that point to a chain which `table` does not contain, because this crate does not
    ///   know the rules of that chain. All other elements of the same owners are lost, too. They
    ///   could permit too much without the lost element: for example, its chain may have restricted
    ///   a port to some clients.
    fn recreation(&self, table: &Table) -> Result<Vec<Message>, Error> {
        let mut messages = vec![table.delete()];
        messages.extend(creation(table, &table.chains.iter().collect::<Vec<_>>()));
        messages.extend(table.chains.iter().flat_map(|it| table.append_rules(it)));
        let mut kept = Vec::new();
        let sets = self.fitting(table)?.into_iter();
        for set in sets.filter(|it| !it.is_of_counts()) {
            kept.extend(self.elements_of(table, set)?);
        }
        let is_ours = |name: &str| table.chains.iter().any(|it| it.name == name);
        let lost = kept.iter().filter(|it| !it.chain().is_none_or(is_ours));
        let losers: HashSet<_> = lost.map(|it| it.owner.clone()).collect();
        kept.retain(|it| !losers.contains(&it.owner));
        messages.extend(kept.iter().map(|it| table.add_element(it)));
        messages.extend(count::first(table, &kept));
        Ok(messages)
    }

    /// Returns the sets of `table` whose elements can stay when the table is recreated. These are
    /// the sets with the same types of keys and targets in the kernel, and the sets that the kernel
    /// does not have.
    fn fitting<'t>(&self, table: &'t Table) -> Result<Vec<&'t Set>, Error> {
        let found = self.find_each(table.sets.iter().map(|it| table.get_set(it)))?;
        let sets = table.sets.iter().zip(found);
        let fitting =
            sets.filter_map(|(set, found)| found.is_none_or(|it| set.fits(&it)).then_some(set));
        Ok(fitting.collect())
    }

    /// Returns whether another program owns the table. Returns `false` if the owner has ended and
    /// the table still exists (`flags owner,persist`): other programs may change such a table.
    pub(crate) fn is_owned(&self, table: &Table) -> Result<bool, Error> {
        let found = self.find(table.get())?;
        Ok(found.is_some_and(|it| it.number(TABLE_OWNER) != 0))
    }

    /// Returns whether the kernel has a table with the name and family of `table`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn exists(&self, table: &Table) -> Result<bool, Error> {
        Ok(self.find(table.get())?.is_some())
    }

    /// Returns the content of each chain that `table` describes, whether the table is dormant, and
    /// whether it lacks a set that no rule uses.
    ///
    /// This function compares the comments of a chain's rules, in order. That is sufficient,
    /// because each comment contains a digest of the rule's expressions and the chain's hook
    /// (`Rule::identity`). This function compares the policy of a base chain separately, because
    /// any process can change the policy without a change of the rules. The policy must be
    /// `accept`.
    ///
    /// This function does not look at sets that a rule uses: if all rules exist, their sets exist,
    /// because the kernel does not delete such a set.
    fn state<'t>(&self, table: &'t Table) -> Result<State<'t>, Error> {
        let bases = table.chains.iter().filter(|it| it.base.is_some());
        let bases = bases.map(|it| table.get_chain(&it.name));
        let unused = table.unused_sets();
        let sets = unused.iter().map(|it| table.get_set(it));
        let found = self.find_each([table.get()].into_iter().chain(bases).chain(sets))?;
        let mut found = found.into_iter();
        let is_dormant = |it: RawMessage| it.number(TABLE_FLAGS) & DORMANT != 0;
        let is_dormant = found.next().flatten().is_some_and(is_dormant);
        let list = message::list_rules(table.family, table.name);
        let rules = self.dump(&list)?;
        let mut content = |chain: &Chain| {
            let rules = rules.iter().filter(|it| it.text(RULE_CHAIN) == chain.name);
            let accepts = |it: RawMessage| it.number(CHAIN_POLICY) == ACCEPT.into();
            let accepts = chain.base.is_none() || found.next().flatten().is_some_and(accepts);
            let comments: Vec<_> = rules.map(RawMessage::rule_comment).collect();
            let described: Vec<_> = chain.identities().map(Some).collect();
            if accepts && comments == described {
                Content::Described
            } else if accepts && rule_place::is_complete(&comments) {
                Content::OfAnotherRelease
            } else {
                Content::Damaged
            }
        };
        let chains = table.chains.iter();
        let chains = chains.map(|it| (it, content(it))).collect();
        Ok(State {
            chains,
            is_dormant,
            // The answers about the table and its base chains have been read.
            lacks_set: found.any(|it| it.is_none()),
        })
    }
}

/// A described chain, with the kernel's report about the chain of the same name.
type Found<'t> = (&'t Chain, RawMessage);

/// Returns netlink messages that create the table, its sets and these chains. Objects that already
/// exist stay as they are, but a dormant table loses the flag `dormant`.
fn creation(table: &Table, chains: &[&Chain]) -> Vec<Message> {
    let mut messages = vec![table.create()];
    let sets = table.sets.iter().zip(1..);
    messages.extend(sets.map(|(set, id)| table.create_set(set, id)));
    messages.extend(chains.iter().map(|chain| table.create_chain(chain)));
    messages
}

/// The attribute with the owner of a table: `NFTA_TABLE_OWNER`. A table without an owner has no
/// such attribute.
pub(crate) const TABLE_OWNER: u16 = 7;

/// The flag of a table whose chains the kernel ignores: `NFT_TABLE_F_DORMANT`.
const DORMANT: u64 = 1;
