//! ADD: sets the sysctls, then changes the interface. A failed ADD rolls both back.

use std::path::Path;

use anyhow::Context as _;
use cni::{AddRequest, Answer, Answered, Error, Undo, files};
use netlink::Connection;
use netns::{Netns, Sysctl};

use crate::record::{self, Namespace, Record};
use crate::{Config, Settings, allowlist};

/// Sets the sysctls, changes the interface, and reports its new MAC and MTU in the result.
///
/// # Errors
/// An error of any step. The rollback has then restored the sandbox.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network, &request.args()?)?;
    let mut result = request.chained()?.clone();
    allowlist::expect_allowed(&config)?;
    let interface = &request.attachment.interface;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let (connection, link);
    let mut undo = Undo::default();
    if !config.sysctls.is_empty() {
        set_sysctls(&namespace, &config.sysctls(interface), &mut undo)?;
    }
    if config.link != Settings::default() {
        connection = Connection::open_in(&namespace).map_err(Error::sandbox)?;
        link = connection.link(interface.as_str())?;
        let record = Record {
            former: Settings::of(&link),
            owner: request.attachment.owner(),
            namespace: Namespace::of(&connection, &request.netns),
        };
        let path = record::path(&config.data_dir, &request.attachment);
        keep(&record, &path, &mut undo)?;
        cni::step("change the interface");
        undo.push("restore the interface", || {
            Ok(Settings::of(&link).apply(&connection, &link.name)?)
        });
        let changed = config.link.apply(&connection, &link.name);
        changed.context("change the sandbox's interface")?;
    }
    let reported = result.interfaces.iter_mut();
    for it in reported.filter(|it| it.name == interface.as_str() && it.sandbox.is_some()) {
        let mac = config.link.mac.map(|mac| mac.to_string());
        it.mac = mac.or(it.mac.take());
        it.mtu = config.link.mtu.or(it.mtu);
    }
    Ok(answer.give_and_keep(&result, undo)?)
}

fn set_sysctls<'a>(
    namespace: &'a Netns,
    wanted: &[(Sysctl, &str)],
    undo: &mut Undo<'a>,
) -> anyhow::Result<()> {
    cni::step("set sysctls");
    let mut former = Vec::new();
    let mut set = |(sysctl, value): &(Sysctl, &str)| {
        let was = sysctl.replace(value)?;
        former.extend(was.map(|was| (sysctl.clone(), was)));
        Ok::<_, netns::Error>(())
    };
    let outcome = namespace.run(|| wanted.iter().try_for_each(&mut set));
    undo.push("restore the sysctls", move || {
        let restore = |(sysctl, was): &(Sysctl, String)| Ok(sysctl.ensure(was)?);
        namespace.run(|| cni::all(former.iter().rev().map(restore)))?
    });
    Ok(outcome.map_err(Error::sandbox)??)
}

/// Writes `record`, the current settings of the interface, to the file `path`. If the file already
/// has a record of the same attachment and sandbox, keeps that record, because it contains the
/// original settings: another `tuning` in the chain or an interrupted ADD wrote the record before
/// it changed the interface.
fn keep(record: &Record, path: &Path, undo: &mut Undo<'_>) -> anyhow::Result<()> {
    cni::step("record the former settings");
    if Record::read(path)?.is_some_and(|it| it.is_like(record)) {
        return Ok(());
    }
    let at = path.to_owned();
    undo.push("remove the record", move || files::remove(&at));
    record.write(path)
}
