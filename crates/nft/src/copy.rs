//! Creates a copy of all rules in another namespace.

use std::collections::BTreeSet;

use netlink_packet_core::NLM_F_CREATE;

use crate::attributes::Attributes;
use crate::error::failed;
use crate::raw::{NEW_ACCOUNT, NEW_RULE, RawMessage};
use crate::ruleset::loadable;
use crate::watch::ROOM;
use crate::{Connection, Error, Message, RulePlace, Ruleset};

/// The rules of a copy that [`Connection::load`] made.
#[derive(Debug)]
pub struct Copied {
    /// The location of each rule in the copy, and in the namespace from which it was read.
    rules: Vec<(RulePlace, RulePlace)>,
    /// Locations of the rules that the kernel refused to create in the copy, in the namespace from
    /// which they were read.
    pub left_out: Vec<RulePlace>,
}

impl Copied {
    /// Converts the location of a rule in the copy to its location in the namespace from which it
    /// was read: its handle differs. Returns the location of a chain's policy unchanged.
    pub fn original(&self, found: &RulePlace) -> RulePlace {
        let mut same = self.rules.iter().filter(|(copy, _)| copy == found);
        same.next().map_or(found, |(_, original)| original).clone()
    }
}

impl Connection {
    /// Creates all of `ruleset` in this namespace. Leaves out the rules that the kernel refuses,
    /// for example because they match an ipset, which this namespace does not have. The caller
    /// guarantees that the namespace has no rules, and that the links in [`Ruleset::links`] and the
    /// objects in [`Ruleset::nfacct_objects`] exist.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`] for another object than a rule; some rules may
    /// have been created before the error.
    pub fn load(&self, ruleset: &Ruleset) -> Result<Copied, Error> {
        // The kernel answers each refused rule of a transaction, before this process reads.
        self.socket.enlarge_buffer(ROOM).map_err(failed(COPY))?;
        let (mut waiting, mut length) = (Vec::new(), 0);
        let (mut originals, mut left_out) = (Vec::new(), Vec::new());
        let mut rules = ruleset.rules.iter();
        let last = ruleset.messages.len();
        for (message, number) in ruleset.messages.iter().zip(1..) {
            let rule = (message.kind == NEW_RULE).then(|| rules.next()).flatten();
            let message = loadable(message, number);
            length += message.attributes.len();
            waiting.push((message, rule));
            if length <= TRANSACTION && number as usize != last {
                continue;
            }
            let refused = self.create_accepted(&waiting)?;
            let (refused, created): (Vec<_>, Vec<_>) = std::mem::take(&mut waiting)
                .into_iter()
                .filter_map(|(_, rule)| rule)
                .partition(|it| refused.contains(it));
            originals.extend(created);
            left_out.extend(refused.into_iter().cloned());
            length = 0;
        }
        let rules = self.rule_places()?.into_iter();
        Ok(Copied {
            rules: rules.zip(originals.into_iter().cloned()).collect(),
            left_out,
        })
    }

    /// Creates the objects of `messages`, each with the location of the rule that it creates. If
    /// the kernel refuses the transaction, sends each message alone. Returns the refused rules.
    fn create_accepted<'r>(
        &self,
        messages: &[(RawMessage, Option<&'r RulePlace>)],
    ) -> Result<Vec<&'r RulePlace>, Error> {
        let all = messages.iter().map(|(message, _)| message.clone());
        match self.create(COPY, all.collect()) {
            Err(Error::Refused { .. } | Error::Unsupported { .. }) => {}
            created => return created.map(|()| Vec::new()),
        }
        let mut refused = Vec::new();
        for (message, rule) in messages {
            match (self.create(COPY, vec![message.clone()]), rule) {
                (Err(Error::Refused { .. } | Error::Unsupported { .. }), Some(rule)) => {
                    refused.push(*rule);
                }
                (created, _) => created?,
            }
        }
        Ok(refused)
    }

    /// Creates nfacct objects with these names, which count nothing yet. Equivalent to `nfacct add
    /// NAME`.
    ///
    /// # Errors
    /// [`Error::Refused`], for example because an object of the name exists.
    pub fn add_nfacct_objects(&self, names: &BTreeSet<String>) -> Result<(), Error> {
        names.iter().try_for_each(|name| {
            let raw = RawMessage::new(NEW_ACCOUNT, 0, Attributes::new().text(ACCOUNT_NAME, name));
            let create = Message::new(format!("create nfacct object {name}"), raw);
            self.execute(&create.with(NLM_F_CREATE))
        })
    }
}

/// The operation for error messages.
const COPY: &str = "copy rules";

/// Size in bytes at which [`Connection::load`] commits a transaction and begins the next one.
const TRANSACTION: usize = 1 << 20;

/// `NFACCT_NAME`
const ACCOUNT_NAME: u16 = 1;
