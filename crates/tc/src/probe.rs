//! Detects missing kernel modules by trying to use them.

use netlink::{Connection, FairQueue, Filter, Handle, Packets, Place, Request, TokenBucket};

use crate::{Error, module};

/// Returns the modules that limits need and the kernel lacks. This function creates one object of
/// each kind in the namespace of `connection` and leaves the objects there, so the namespace should
/// be a temporary one. Without [`module::HTB`], it cannot try [`module::U32`].
///
/// # Errors
/// [`Error::Netlink`]: the kernel refused a request, but not because a module is missing.
pub fn missing(connection: &Connection) -> Result<Vec<&'static str>, Error> {
    let lo = connection.link("lo")?.index;
    let root = |major| Place::new(lo, Handle::ROOT, Handle::new(major, 0));
    let filter = Request::add_filter(lo, Handle::new(1, 0), &ANY_FILTER);
    let mut missing = Vec::new();
    for (module, request) in [
        (module::HTB, Request::add_htb(root(1), 0)),
        (module::U32, filter),
        (module::TBF, Request::set_tbf(root(2), &ANY_BUCKET)),
        (module::FQ_CODEL, Request::set_fq_codel(root(3), &ANY_QUEUE)),
    ] {
        if module != module::U32 || missing.is_empty() {
            missing.extend(lacking(module, connection.execute([request]))?);
        }
    }
    Ok(missing)
}

/// Returns `module` if `tried` failed because the kernel does not know the kind of object, and
/// `None` if `tried` succeeded. Any other failure is an error.
fn lacking(
    module: &'static str,
    tried: Result<(), netlink::Error>,
) -> Result<Option<&'static str>, Error> {
    match tried {
        Err(error) if error.is_unknown_kind() => Ok(Some(module)),
        tried => Ok(tried.map(|()| None)?),
    }
}

const ANY_FILTER: Filter = Filter {
    priority: 1,
    packets: Packets::All,
    class: Handle::new(1, 0),
};

const ANY_BUCKET: TokenBucket = TokenBucket {
    rate: 1_000_000,
    burst: 10_000,
    limit: 100_000,
    in_microseconds: false,
    piece: None,
    longest: 0,
};

const ANY_QUEUE: FairQueue = FairQueue {
    target: 5000,
    interval: 100_000,
    limit: 1000,
    quantum: 1514,
    memory: 6_056_000,
};
