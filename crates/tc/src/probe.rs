//! Detects missing kernel modules by trying to use them.

use netlink::{
    Connection, FairQueue, Filter, Handle, MacAddress, Packets, Place, Request, TokenBucket,
};

use crate::{Error, module};

/// Returns the modules that limits need and the kernel lacks. This function creates one object of
/// each kind in the namespace of `connection` and leaves the objects there, so the namespace should
/// be a temporary one.
///
/// Without [`module::INGRESS`], this function cannot try [`module::U32`] and [`module::MIRRED`].
/// Without [`module::U32`], it cannot try [`module::MIRRED`]. It does not return modules that it
/// cannot try.
///
/// # Errors
/// [`Error::Netlink`]: the kernel refused a request, but not because a module is missing.
pub fn missing(connection: &Connection) -> Result<Vec<&'static str>, Error> {
    let lo = connection.link("lo")?.index;
    let ifb = connection.add_ifb("ifb", MacAddress([2, 0, 0, 0, 0, 0]), 1500);
    let root = |major| Place::new(lo, Handle::ROOT, Handle::new(major, 0));
    let mut missing = Vec::new();
    missing.extend(lacking(module::IFB, ifb.map(drop))?);
    for (module, request) in [
        (module::HTB, Request::add_htb(root(1), 0)),
        (module::TBF, Request::set_tbf(root(2), &ANY_BUCKET)),
        (module::INGRESS, Request::add_ingress(lo)),
        (module::U32, add_filter(lo, 1, None)),
        (module::MIRRED, add_filter(lo, 2, Some(lo))),
    ] {
        missing.extend(lacking(module, connection.execute(vec![request]))?);
        if matches!(missing.last(), Some(&(module::INGRESS | module::U32))) {
            break;
        }
    }
    let fair = connection.execute([Request::set_fq_codel(root(3), &ANY_QUEUE)]);
    missing.extend(lacking(module::FQ_CODEL, fair)?);
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

fn add_filter(link: u32, priority: u16, redirect: Option<u32>) -> Request {
    let filter = Filter {
        priority,
        packets: Packets::All,
        class: Handle::new(1, 1),
        redirect,
    };
    Request::add_filter(link, Handle::INGRESS_FILTERS, &filter)
}

const ANY_BUCKET: TokenBucket = TokenBucket {
    rate: 1_000_000,
    burst: 10_000,
    limit: 100_000,
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
