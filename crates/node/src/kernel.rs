//! Finds missing kernel features: tries in a temporary network namespace what the plugins do.

use facts::Lack;
use netns::Netns;

use super::lookup::elements;
use super::plugins::PLUGINS;

/// Returns the features that plugins may need and the kernel lacks.
///
/// # Errors
/// The kernel refuses to create the temporary namespace or a socket in it, to look up a link, or to
/// create a qdisc or filter for a reason other than a missing module.
pub(super) fn lacks() -> anyhow::Result<Vec<Lack>> {
    Netns::run_in_new(|| {
        let mut lacks = Vec::<Lack>::new();
        for plugin in PLUGINS {
            for lack in (plugin.lacks)()? {
                let is_same = |it: &&mut Lack| (&it.reason, it.need) == (&lack.reason, lack.need);
                match lacks.iter_mut().find(is_same) {
                    Some(known) => known.plugins.extend(lack.plugins),
                    None => lacks.push(lack),
                }
            }
        }
        lacks.extend(tables()?);
        Ok(lacks)
    })?
}

/// Tries to make the plugins' tables in `nf_tables`. Returns the missing features, each once even
/// if the kernel does not support the table in any of its families.
fn tables() -> anyhow::Result<Vec<Lack>> {
    let connection = nft::Connection::open()?;
    let lacks = elements().into_iter().filter_map(|(plugins, elements)| {
        let tables = (elements.tables)();
        let error = tables.iter().find_map(|it| connection.dry_run(it).err())?;
        Some(Lack {
            modules: error.modules(),
            reason: super::message(error),
            plugins,
            need: elements.need,
        })
    });
    Ok(lacks.collect())
}
