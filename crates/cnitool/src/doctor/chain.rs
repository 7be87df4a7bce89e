//! Checks the plugins of each list against each other: their order, and tasks that only one of them
//! can have.

use std::collections::BTreeMap;

use cni::Role;
use facts::{Scope, Task};
use node::{File, Network, Node};

use super::edit;
use super::finding::{Finding, Level};

/// Reports lists that begin with a plugin that needs an earlier one, and lists in which two plugins
/// have the same task.
pub fn judge(node: &Node) -> Vec<Finding> {
    let networks = node.configuration.networks();
    let findings = networks.flat_map(|(file, network)| {
        let findings = first(node, file, network).into_iter();
        findings.chain(twice(node, file, network))
    });
    let findings = findings.map(|(file, finding)| {
        let place = node.configuration.place(file);
        finding.fix(edit::open(&place))
    });
    findings.collect()
}

/// Finds a list whose first plugin needs the result of an earlier one.
fn first<'n>(node: &Node, file: &'n File, network: &Network) -> Option<(&'n File, Finding)> {
    let first = network.list.plugins.first()?;
    let message = format!(
        "{}: {} is the first plugin, but needs the result of an earlier one",
        file.name, first.program
    );
    (cni::role(&first.program) == Some(Role::Chained)).then(|| {
        let finding = Finding::new(Level::of_file(node, &file.name), message);
        let impact = "Every ADD fails. Put it behind the plugin that makes the interface.";
        (file, finding.impact(impact))
    })
}

/// Finds tasks that two plugins of a list have.
fn twice<'n>(node: &Node, file: &'n File, network: &Network) -> Vec<(&'n File, Finding)> {
    let mut holders = BTreeMap::<_, Vec<_>>::new();
    for plugin in &network.list.plugins {
        let tasks = node::facts(&plugin.program).tasks;
        for (task, scope) in tasks(&plugin.config, &plugin.capabilities) {
            holders.entry(task).or_default().push((plugin, scope));
        }
    }
    let several = holders.into_iter().filter(|(_, holders)| holders.len() > 1);
    let findings = several.map(|(task, holders)| {
        let names: Vec<_> = holders.iter().map(|it| it.0.program.as_str()).collect();
        let (words, impact) = words(task);
        let message = format!("{}: {} both {words}", file.name, names.join(" and "));
        let is_always = holders.iter().all(|it| it.1 == Scope::All);
        let level = if is_always && task == Task::MakeInterface {
            Level::of_file(node, &file.name)
        } else {
            Level::Warning
        };
        (file, Finding::new(level, message).impact(impact))
    });
    findings.collect()
}

/// Returns words for a task that two plugins have, and the impact.
fn words(task: Task) -> (&'static str, &'static str) {
    match task {
        Task::MakeInterface => (
            "make the interface",
            "The second one finds that it exists: every ADD fails. Keep one of them.",
        ),
        Task::LimitIngress => (
            "limit what pods receive",
            "The limit of the last one applies. Keep one of them.",
        ),
        Task::LimitEgress => (
            "limit what pods send",
            "The limit of the last one applies. Keep one of them.",
        ),
    }
}
